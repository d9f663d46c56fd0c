import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import compat
from nnxlab.model import config, inputs, nnx_model, stack
from nnxlab.model.scan_axis import POSITION_KEY, RECORDED, ScanAxisError


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


def test_one_layer_is_a_stack_too():
    layers, x = _stack(length=1), jnp.ones((2, 4))
    assert layers.kernel.shape == (4, 1, 4)
    np.testing.assert_allclose(_apply(layers, x), jnp.tanh(x @ layers.kernel[:, 0]), rtol=1e-5)


def test_every_layer_has_weights_of_its_own():
    layers = np.moveaxis(np.asarray(_stack().kernel[...]), 1, 0)
    assert len({layer.tobytes() for layer in layers}) == 3


def test_a_counter_in_the_layers_is_counted_on_and_written_back():
    class Counting(Layer):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.count = nnx.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, x):
            self.count[...] += 1
            return super().__call__(x)

    layers = stack.create(Counting, 3, "stack", 1, nnx.Rngs(params=0))
    for _ in range(2):
        _apply(layers, jnp.ones((2, 4)))
    assert layers.count[...].tolist() == [2, 2, 2]


def test_what_the_layers_sow_comes_back_stacked():
    # F4: a scan whose outputs are filtered drops what was sown in its body.
    layers = _stack()
    _apply(layers, jnp.ones((2, 4)))
    (seen,) = layers.seen.get_value()
    assert seen.shape == (3, 2, 4)
    np.testing.assert_array_equal(seen[0], jnp.ones((2, 4)))


def test_a_second_forward_adds_to_what_was_sown():
    layers = _stack()
    for factor in (1, 2):
        _apply(layers, factor * jnp.ones((2, 4)))
    first, second = layers.seen.get_value()
    assert first.shape == second.shape == (3, 2, 4)
    assert (first[0] == 1).all() and (second[0] == 2).all()


def test_sowing_under_grad_raises_nothing_and_leaves_the_model_alone():
    # F6 (flax #5050): the sown variable is closed over, its value from outside the gradient.
    layers, x = _stack(), jnp.ones((2, 4))
    _apply(layers, x)
    (before,) = layers.seen.get_value()
    graphdef, params, rest = nnx.split(layers, nnx.Param, ...)

    def total(params):
        return _apply(nnx.merge(graphdef, params, rest, copy=True), x).sum()

    gradient = jax.tree.leaves(jax.grad(total)(params))[0]
    assert gradient.shape == layers.kernel.shape and gradient.any()
    (after,) = layers.seen.get_value()
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("broken", ["names", "record"])
def test_inconsistent_metadata_stops_the_scan(broken):
    layers = _stack()
    if broken == "names":
        compat.set_logical_axes(layers.kernel, ("a", "b"))
    else:
        layers.kernel.set_metadata(**{POSITION_KEY: 0})
    with pytest.raises(ScanAxisError, match="kernel: names"):
        _apply(layers, jnp.ones((2, 4)))
    assert not hasattr(layers, "seen")


def _leaving(equations):
    """Bytes that the scans stack up; the carry, one array here, is their first output."""
    outs = [v.aval for e in equations if e.primitive.name == "scan" for v in e.outvars[1:]]
    return sum(out.size * out.dtype.itemsize for out in outs)


@pytest.mark.parametrize("policy", list(config.REMAT_POLICIES))
def test_only_what_was_sown_leaves_the_scan(equations, policy):
    graphdef, state = nnx.split(_stack())

    def run(state, x):
        return _apply(nnx.merge(graphdef, state), x, policy)

    assert _leaving(equations(run, state, jnp.ones((2, 4)))) == 3 * 2 * 4 * 4


@pytest.mark.parametrize("policy", list(config.REMAT_POLICIES))
def test_parameters_do_not_leave_the_scan(equations, policy):
    # F5 (MaxText 655c636dd): returned from the body, read-only weights are stacked up once more.
    sizes = config.DEEPSEEK3_SMALL.replace(remat_policy=policy)
    graphdef, state = nnx.split(nnx_model.abstract(sizes))
    program = equations(lambda s, b: nnx.merge(graphdef, s)(*b[:3]), state, inputs.dummy(sizes))
    assert len([e for e in program if e.primitive.name == "scan"]) == 2
    assert _leaving(program) == 0


def test_a_weight_that_leaves_the_scan_would_be_seen(equations):
    # Under remat only: without it, jax itself takes an output that is an input out of the scan.
    def faulty(x, kernels):
        body = jax.checkpoint(lambda x, kernel: (jnp.tanh(x @ kernel), kernel))
        return jax.lax.scan(body, x, kernels)

    assert _leaving(equations(faulty, jnp.ones((2, 4)), jnp.ones((3, 4, 4)))) == 3 * 4 * 4 * 4


def test_values_keep_their_order_after_a_forward():
    layers = _stack()
    before = np.asarray(layers.kernel[...])
    _apply(layers, jnp.ones((2, 4)))
    np.testing.assert_array_equal(layers.kernel[...], before)
