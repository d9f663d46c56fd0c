import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import compat
from nnxlab.model import config, inputs, nnx_model, stack
from nnxlab.model.scan_axis import POSITION_KEY, RECORDED


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.kernel = compat.param(jax.random.normal(rngs.params(), (4, 4)), ("a", "b"))

    def __call__(self, x):
        self.sow(nnx.Intermediate, "seen", x)
        return jnp.tanh(x @ self.kernel[...])


def _stack(axis=1, length=3):
    return stack.create(Layer, length, "stack", axis, nnx.Rngs(params=0))


def _apply(layers, x, policy="none"):
    return stack.apply(layers, x, lambda layer, x: layer(x), trip=RECORDED, remat_policy=policy)


@pytest.mark.parametrize("axis", [0, 1, 2, 7, -1])
def test_a_stack_applies_its_layers_in_order(axis):
    layers, x = _stack(axis), jnp.ones((2, 4))
    position = layers.kernel.get_metadata()[POSITION_KEY]
    expected = x
    for kernel in np.moveaxis(np.asarray(layers.kernel[...]), position, 0):
        expected = jnp.tanh(expected @ kernel)
    np.testing.assert_allclose(_apply(layers, x), expected, rtol=1e-5)
    assert compat.logical_axes(layers.kernel)[position] == "stack"


@pytest.mark.parametrize("policy", list(config.REMAT_POLICIES))
def test_remat_changes_neither_value_nor_gradient(policy):
    graphdef, state = nnx.split(_stack())

    def total(state, policy):
        layers = nnx.merge(graphdef, state, copy=True)
        return _apply(layers, jnp.ones((2, 4)), policy).sum()

    gradients = [jax.grad(total)(state, p) for p in ("none", policy)]
    np.testing.assert_allclose(*(jax.tree.leaves(g)[0] for g in gradients), rtol=1e-5)


def test_what_the_layers_sow_comes_back_stacked():
    # F4: a scan whose outputs are filtered drops what was sown in its body.
    layers = _stack()
    _apply(layers, jnp.ones((2, 4)))
    (seen,) = layers.seen.get_value()
    assert seen.shape == (3, 2, 4)
    np.testing.assert_array_equal(seen[0], jnp.ones((2, 4)))


def test_parameters_do_not_leave_the_scan():
    # F5 (MaxText 655c636dd): returned from the body, read-only weights are stacked up once more.
    sizes = config.DEEPSEEK3_SMALL
    graphdef, state = nnx.split(nnx_model.abstract(sizes))
    program = jax.make_jaxpr(lambda s, b: nnx.merge(graphdef, s)(*b[:3]))(
        state, inputs.dummy(sizes)
    )
    scans = [e for e in program.eqns if e.primitive.name == "scan"]
    assert len(scans) == 2
    for scan in scans:
        assert len(scan.outvars) == scan.params["num_carry"]


def test_values_keep_their_order_after_a_forward():
    layers = _stack()
    before = np.asarray(layers.kernel[...])
    _apply(layers, jnp.ones((2, 4)))
    np.testing.assert_array_equal(layers.kernel[...], before)
