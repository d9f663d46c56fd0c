import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx

from nnxlab.model import config, inputs, linen_model, port
from nnxlab.model.port import WeightError


def _leaves(model):
    return {str(path): np.asarray(v.get_value()) for path, v in nnx.to_flat_state(nnx.state(model))}


def _equal(a, b):
    a, b = _leaves(a), _leaves(b)
    return a.keys() == b.keys() and all((a[path] == b[path]).all() for path in a)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, 3])
@pytest.mark.parametrize("depths", [0, 1, 2])
def test_weights_go_to_linen_and_back(filled, depths, axis):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths, param_scan_axis=axis)
    one, other = filled(sizes, seed=0), filled(sizes, seed=1)
    assert not _equal(one, other)
    port.from_linen(port.to_linen(one), other)
    assert _equal(one, other)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("depths", [0, 1, 2])
def test_linens_own_weights_go_to_nnx_and_back(filled, depths, axis):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths, param_scan_axis=axis)
    linen, random = linen_model.DeepSeek(sizes), np.random.default_rng(0)
    drawn = jax.eval_shape(linen.init, jax.random.key(0), *inputs.dummy(sizes))["params"]
    boxed = jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), drawn)
    model = filled(sizes)
    port.from_linen({"params": boxed}, model)
    jax.tree.map(np.testing.assert_array_equal, port.to_linen(model)["params"], nn.unbox(boxed))


def test_each_layer_of_a_stack_arrives_at_its_own_place(filled):
    # Not a round trip: two wrong moves of the layer axis could undo one another.
    sizes = config.DEEPSEEK3_SMALL.replace(param_scan_axis=2)
    model = filled(sizes)
    ours = model.decoder.moe_layers.self_attention.out.kernel[...]
    moe_layers = port.to_linen(model)["params"]["decoder"]["moe_layers"]
    theirs = moe_layers["self_attention"]["out"]["kernel"]
    assert ours.shape == (4, 16, 3, 32) and theirs.shape == (3, 4, 16, 32)
    for layer in range(3):
        np.testing.assert_array_equal(ours[:, :, layer], theirs[layer])


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted(model, value):
    def spoil(values):
        values["decoder.decoder_norm.scale"][:3] = value

    with pytest.raises(WeightError, match="decoder.decoder_norm.scale: 3 values are not finite"):
        _load(model, spoil)


def test_from_linen_names_what_does_not_fit_too(filled, sizes):
    plain = port.to_linen(filled(config.DEEPSEEK3_SMALL))
    with pytest.raises(WeightError) as caught:
        port.from_linen(plain, filled(sizes))
    text = str(caught.value)
    assert text.count("mtp_block.") == text.count(": missing") == 20
    with pytest.raises(WeightError, match="mtp_block.*: left over"):
        port.from_linen(port.to_linen(filled(sizes)), filled(config.DEEPSEEK3_SMALL))


def test_loading_keeps_the_metadata(model):
    names = [v.get_metadata()["out_sharding"] for v in _variables(model)]
    _load(model, lambda values: None)
    assert names == [v.get_metadata()["out_sharding"] for v in _variables(model)]
    assert not any(np.any(v.get_value()) for v in _variables(model))


def _variables(model):
    return [v for _, v in nnx.to_flat_state(nnx.state(model, nnx.Param))]
