import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx, traverse_util

from nnxlab import compat, reference, sharding
from nnxlab.model import config, inputs, linen_model, nnx_model, port, weights
from nnxlab.model.scan_axis import dotted

SMALL = config.DEEPSEEK3_SMALL


def _nnx(sizes):
    found = sharding.variables(nnx_model.abstract(sizes))
    return {path: (tuple(v.shape), compat.logical_axes(v)) for path, v in found}


def _linen(sizes):
    model, batch = linen_model.DeepSeek(sizes), inputs.dummy(sizes)
    params = jax.eval_shape(model.init, jax.random.key(0), *batch)["params"]
    boxed = traverse_util.flatten_dict(
        jax.tree.map(lambda x: x, params, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
    )
    return {dotted(path): (box.value.shape, tuple(box.names)) for path, box in boxed.items()}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("depths", [0, 1, 2])
def test_nnx_and_linen_have_the_same_weights_shapes_and_axes(depths, axis):
    sizes = SMALL.replace(mtp_num_layers=depths, param_scan_axis=axis)
    assert _nnx(sizes) == _linen(sizes)


def test_tiny_has_maxtexts_weights_shapes_and_axes(maxtext_table):
    ours = _nnx(config.DEEPSEEK3_TINY)
    theirs = {
        row["path"]: (tuple(row["shape"]), tuple(row["names_before"]))
        for row in maxtext_table["table"]
    }
    assert ours == theirs


def test_small_with_mtp_has_maxtexts_weights(sizes):
    import json

    stored = json.loads(reference.SMALL_DUMP.with_suffix(".json").read_text())["sharding"]
    theirs = {
        path: tuple(None if name == "None" else name for name in names)
        for path, (names, _) in stored.items()
    }
    assert {path: axes for path, (_, axes) in _nnx(sizes).items()} == theirs


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (config.DEEPSEEK3_TINY, 33_706_448),
        (config.DEEPSEEK3_TINY.replace(mtp_num_layers=1), 34_005_776),
        (config.DEEPSEEK3_671B, 671_026_419_200),
    ],
)
def test_parameters_are_counted_without_allocating(sizes, count):
    assert port.count_parameters(sizes) == count


def test_671b_without_the_routing_bias_is_the_published_count():
    shapes = port.shapes(nnx_model.abstract(config.DEEPSEEK3_671B))
    bias = [shape for path, shape in shapes.items() if path.endswith("gate.bias")]
    assert bias == [(256, 58)]
    assert port.count_parameters(config.DEEPSEEK3_671B) - 256 * 58 == 671_026_404_352


def test_draws_refuse_a_weight_that_was_not_announced():
    draws = weights.Draws(jax.random.key(0), [weights.kernel((2, 3), "a", "b")])
    draws.initial(weights.kernel((2, 3), "a", "b"))
    with pytest.raises(ValueError, match="7 numbers used, 6 announced"):
        draws.initial(weights.kernel((1, 1), "a", "b"))


def _contracted(name, shape):
    """Sizes that a matrix product sums over: two axes of ``out``, the middle of the experts'."""
    if name == "out":
        return shape[0] * shape[1]
    return shape[1] if len(shape) == 3 and name in ("wi_0", "wi_1", "wo") else shape[0]


def test_matrices_have_variance_1_over_what_they_sum_over():
    tables = [weights.attention(SMALL), weights.mlp(SMALL, 48), weights.router(SMALL)]
    tables += [weights.experts(SMALL), {"logits": weights.logits(SMALL)}]
    tables += [{"projection": weights.mtp_projection(SMALL)}]
    drawn = [(name, w) for table in tables for name, w in table.items() if w.draws]
    assert len(drawn) == 14
    for name, weight in drawn:
        assert weight.std == pytest.approx(_contracted(name, weight.shape) ** -0.5), name
    assert weights.embedding(SMALL).std == pytest.approx(32**-0.5)


def test_every_weight_names_each_dimension():
    for moe in (False, True):
        for weight in weights.layer(SMALL, moe=moe):
            assert len(weight.axes) == len(weight.shape)


def test_initial_values_have_the_declared_mean_and_deviation():
    weight = weights.kernel((200, 300), "a", "b")
    value = weight.init(jax.random.key(0), (200, 300), jnp.float32)
    assert float(value.std()) == pytest.approx(200**-0.5, rel=0.02)
    assert float(jnp.abs(value).max()) <= 2 / weights.TRUNCATED_STD * 200**-0.5
    scale = weights.scale(4)
    assert scale.init(jax.random.key(0), (4,), jnp.float32).tolist() == [1.0] * 4


def test_create_uses_the_seed():
    dense = SMALL.replace(first_num_dense_layers=SMALL.num_decoder_layers)
    one, same, other = (nnx_model.create(dense, seed=s) for s in (0, 0, 1))
    leaves = [jax.tree.leaves(nnx.state(m)) for m in (one, same, other)]
    assert all((a == b).all() for a, b in zip(leaves[0], leaves[1], strict=True))
    assert any((a != b).any() for a, b in zip(leaves[0], leaves[2], strict=True))
