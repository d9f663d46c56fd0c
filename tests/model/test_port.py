import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab.model import config, nnx_model, port
from nnxlab.model.port import WeightError


def _leaves(model):
    return {str(path): np.asarray(v.get_value()) for path, v in nnx.to_flat_state(nnx.state(model))}


def _equal(a, b):
    a, b = _leaves(a), _leaves(b)
    return a.keys() == b.keys() and all((a[path] == b[path]).all() for path in a)


@pytest.mark.parametrize(("depths", "axis"), [(0, 0), (1, 1), (2, 2), (1, -1), (0, 3)])
def test_weights_go_to_linen_and_back(depths, axis):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths, param_scan_axis=axis)
    one, other = nnx_model.create(sizes, seed=0), nnx_model.create(sizes, seed=1)
    assert not _equal(one, other)
    port.from_linen(port.to_linen(one), other)
    assert _equal(one, other)


def _load(model, change):
    values = {p: np.zeros(s, np.float32) for p, s in port.shapes(model).items()}
    change(values)
    port.load(model, values, axis=1)


def test_every_weight_that_does_not_fit_is_named_and_nothing_is_changed(model):
    before = _leaves(model)

    def spoil(values):
        del values["decoder.decoder_norm.scale"]
        values["decoder.extra"] = np.zeros(1)
        values["token_embedder.embedding"] = np.zeros((2, 2), np.float32)
        values["decoder.logits_dense.kernel"][0, 0] = np.nan

    with pytest.raises(WeightError) as caught:
        _load(model, spoil)
    for line in (
        "decoder.decoder_norm.scale: missing",
        "decoder.extra: left over",
        "token_embedder.embedding: shape (2, 2), needs (256, 32)",
        "decoder.logits_dense.kernel: 1 values are not finite",
    ):
        assert line in str(caught.value)
    after = _leaves(model)
    assert all((before[path] == after[path]).all() for path in before)


def test_loading_keeps_the_metadata(model):
    names = [v.get_metadata()["out_sharding"] for v in _variables(model)]
    _load(model, lambda values: None)
    assert names == [v.get_metadata()["out_sharding"] for v in _variables(model)]
    assert not any(jnp.any(v.get_value()) for v in _variables(model))


def _variables(model):
    return [v for _, v in nnx.to_flat_state(nnx.state(model, nnx.Param))]
