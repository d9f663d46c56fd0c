import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import devices
from nnxlab.model import config, inputs, linen_model, port, sown
from nnxlab.training import MTP_COLLECTIONS, collect_all


def _both(model, batch):
    """Logits and MTP sums of ``model`` and of Linen with its weights, in one program."""
    graphdef, state = nnx.split(model)
    linen = linen_model.DeepSeek(model.config)

    def run(state, variables, batch):
        ours = nnx.merge(graphdef, state, copy=True)
        logits, found = ours(*batch), collect_all(ours)
        theirs, left = linen.apply(variables, *batch, mutable=MTP_COLLECTIONS)
        if not model.config.mtp_num_layers:
            return (logits, ()), (theirs, ())
        sums = [sown.required(found, "mtp_losses", "mtp_block", n) for n in ("losses", "weights")]
        block = left["mtp_losses"]["mtp_block"]
        return (logits, sums), (theirs, [block["losses"], block["weights"]])

    run = jax.jit(run, compiler_options=devices.one_shot())
    return run(state, port.to_linen(model), batch)


# Stacked at -1 in NNX, the weights reach Linen, which stacks at 0, by a move of their layer axis.
@pytest.mark.parametrize(("depths", "axis"), [(0, 0), (2, -1)])
def test_linen_equals_nnx_from_the_same_weights(filled, depths, axis):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths, param_scan_axis=axis)
    (ours, sums), (theirs, their_sums) = _both(
        filled(sizes), inputs.synthetic(sizes, batch=2, length=8)
    )
    assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs) > 0
    assert np.shape(sums) == np.shape(their_sums) == ((2, depths) if depths else (0,))
    np.testing.assert_allclose(sums, their_sums, rtol=1e-6)


@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1, 1), (-1, 0), (2, 0), (5, 0), (-3, 0)])
def test_linen_stacks_where_every_weight_can(asked, used):
    sizes = config.DEEPSEEK3_SMALL.replace(param_scan_axis=asked)
    assert linen_model.scan_axis(sizes) == used
    linen, batch = linen_model.DeepSeek(sizes), inputs.dummy(sizes)
    boxed = jax.eval_shape(linen.init, jax.random.key(0), *batch)["params"]["decoder"]
    for name, length in (("dense_layers", 2), ("moe_layers", 3)):
        for value in jax.tree.leaves(boxed[name]):
            assert value.shape[used] == length


def test_linen_is_called_as_the_batch_is_laid_out():
    parameters = inspect.signature(linen_model.DeepSeek.__call__).parameters
    assert tuple(parameters)[1:] == inputs.Batch._fields


def test_linen_initialises_without_targets():
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1)
    batch = inputs.dummy(sizes)[:3]
    jax.eval_shape(linen_model.DeepSeek(sizes).init, jax.random.key(0), *batch)


@pytest.mark.parametrize("policy", ["full", "minimal"])
def test_remat_is_a_choice_of_linen_too(policy):
    sizes = config.DEEPSEEK3_SMALL.replace(remat_policy=policy)
    linen, batch = linen_model.DeepSeek(sizes), inputs.dummy(sizes)
    params = jax.eval_shape(linen.init, jax.random.key(0), *batch)
    logits = jax.eval_shape(linen.apply, params, *batch)
    assert logits.shape == (*batch.tokens.shape, sizes.vocab_size)
    assert logits.dtype == jnp.float32
