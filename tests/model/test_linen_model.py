import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import devices
from nnxlab.model import config, inputs, linen_model, port, sown
from nnxlab.training import MTP_COLLECTIONS, collect_all

SOWN = {
    "losses": "mtp_losses",
    "weights": "mtp_losses",
    "predictions": "mtp_acceptance",
    "mask": "mtp_acceptance",
}


def _both(model, batch):
    """Logits and all that is sown, by ``model`` and by Linen with its weights, in one program."""
    graphdef, state = nnx.split(model)
    linen = linen_model.DeepSeek(model.config)

    def run(state, variables, batch):
        ours = nnx.merge(graphdef, state, copy=True)
        logits, found = ours(*batch), collect_all(ours)
        theirs, left = linen.apply(variables, *batch, mutable=MTP_COLLECTIONS)
        if not model.config.mtp_num_layers:
            return (logits, {}), (theirs, {})
        ours = {name: sown.required(found, kind, "mtp_block", name) for name, kind in SOWN.items()}
        left = {name: left[kind]["mtp_block"][name] for name, kind in SOWN.items()}
        return (logits, ours), (theirs, left)

    run = jax.jit(run, compiler_options=devices.one_shot())
    return run(state, port.to_linen(model), batch)


def _packed(sizes):
    """Two documents and padding: where positions start anew, it matters which ones are given."""
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]] * 2)
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0]] * 2)
    batch = inputs.synthetic(sizes, batch=2, length=8)
    return batch._replace(positions=positions, segment_ids=segments, target_mask=segments)


# Stacked at -1 in NNX, the weights reach Linen, which stacks at 0, by a move of their layer axis.
@pytest.mark.parametrize(("depths", "axis"), [(0, 0), (2, -1)])
def test_linen_equals_nnx_from_the_same_weights(filled, depths, axis):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths, param_scan_axis=axis)
    (ours, sown_here), (theirs, sown_there) = _both(filled(sizes), _packed(sizes))
    assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs) > 0
    for name in SOWN if depths else ():
        assert len(sown_here[name]) == len(sown_there[name]) == depths
        np.testing.assert_allclose(sown_here[name], sown_there[name], rtol=1e-6)


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
    parameters = inspect.signature(linen_model.DeepSeek.__call__).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert tuple(positional[1:]) == inputs.Batch._fields


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
