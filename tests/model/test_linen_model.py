import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnxlab.model import config, inputs, linen_model, nnx_model, port, sown
from nnxlab.training import MTP_COLLECTIONS, SOWN_TYPES


@pytest.mark.parametrize("depths", [0, 2])
def test_linen_equals_nnx_from_the_same_weights(depths):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths)
    model, batch = nnx_model.create(sizes), inputs.synthetic(sizes, batch=2, length=8)
    logits = model(*batch)
    found = sown.collect(model, *SOWN_TYPES)
    linen = linen_model.DeepSeek(sizes)
    theirs, left = linen.apply(port.to_linen(model), *batch, mutable=MTP_COLLECTIONS)
    np.testing.assert_allclose(logits, theirs, rtol=1e-5, atol=1e-5)
    if depths:
        ours = sown.required(found, "mtp_losses", "mtp_block", "losses")
        np.testing.assert_allclose(ours, left["mtp_losses"]["mtp_block"]["losses"], rtol=1e-6)


@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1, 1), (-1, 0), (2, 0), (5, 0), (-3, 0)])
def test_linen_stacks_where_every_weight_can(asked, used):
    sizes = config.DEEPSEEK3_SMALL.replace(param_scan_axis=asked)
    assert linen_model.scan_axis(sizes) == used
    linen, batch = linen_model.DeepSeek(sizes), inputs.dummy(sizes)
    jax.eval_shape(linen.init, jax.random.key(0), *batch)


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
