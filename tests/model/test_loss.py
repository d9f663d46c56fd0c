import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnxlab.model import inputs, linen_model, loss, port
from nnxlab.training import MTP_COLLECTIONS, mtp_term


def test_cross_entropy_is_minus_the_log_probability():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 7)), jnp.float32)
    targets = jnp.array([[0, 6, 3], [1, 1, 2]])
    expected = -jax.nn.log_softmax(logits)[*np.indices((2, 3)), targets]
    np.testing.assert_allclose(loss.cross_entropy(logits, targets), expected, rtol=1e-5)


def test_no_one_hot_of_the_vocabulary_is_made():
    # A one-hot compares every target with every token: [B, S, V] of booleans from an equality.
    shape = (2, 3, 997)
    program = jax.make_jaxpr(jax.grad(lambda x, t: loss.cross_entropy(x, t).sum()))(
        jnp.zeros(shape), jnp.zeros(shape[:2], int)
    )
    text = str(program)
    assert "one_hot" not in text
    assert not [line for line in text.splitlines() if "i32[2,3,997]" in line]


def test_roll_left_is_the_next_position_and_zero_at_the_end():
    np.testing.assert_array_equal(loss.roll_left(jnp.array([[1, 2, 3]])), [[2, 3, 0]])


def test_mtp_loss_pools_the_depths_and_is_no_mean_of_means():
    value = loss.mtp_loss([jnp.array(10.0), jnp.array(1.0)], [jnp.array(5.0), jnp.array(1.0)], 0.1)
    assert float(value) == pytest.approx(0.1 * 11 / 6)
    assert float(value) != pytest.approx(0.1 * (10 / 5 + 1 / 1) / 2)


def test_an_empty_batch_has_loss_0_and_not_nan():
    zero = jnp.zeros(())
    assert float(loss.mtp_loss([zero], [zero], 0.1)) == 0.0
    assert float(loss.lm_loss(jnp.zeros((1, 2, 3)), jnp.zeros((1, 2), int), jnp.zeros((1, 2)))) == 0


def test_acceptance_counts_where_both_heads_predict_one_token():
    logits = jax.nn.one_hot(jnp.array([[0, 1, 2, 3]]), 5)
    mask = jnp.array([[1.0, 1, 1, 0]])
    assert float(loss.mtp_acceptance(logits, jnp.array([[1, 2, 3, 0]]), mask)) == pytest.approx(1)
    assert float(loss.mtp_acceptance(logits, jnp.array([[1, 2, 9, 0]]), mask)) == pytest.approx(
        2 / 3
    )


@pytest.fixture(scope="module")
def packed(sizes):
    """One batch of rows whose mask is 1, 1, ... and the same with the mask 1, 1, 2, 2, ..."""
    one = inputs.synthetic(sizes, batch=2, length=8)
    return one, one._replace(target_mask=jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]] * 2))


def test_packed_documents_weigh_once_in_nnx(packed, model):
    # F17 (MaxText 092c3e871, 80d81d9ae): a mask made of segment ids weighs the second twice.
    terms = []
    for batch in packed:
        logits = model(*batch)
        mask = loss.loss_mask(batch.target_mask)
        terms.append((mtp_term(model), loss.lm_loss(logits, batch.targets, mask)))
    np.testing.assert_array_equal(*terms)


def test_packed_documents_weigh_once_in_linen(packed, model, sizes):
    variables, linen = port.to_linen(model), linen_model.DeepSeek(sizes)
    sown = [linen.apply(variables, *batch, mutable=MTP_COLLECTIONS)[1] for batch in packed]
    blocks = [state["mtp_losses"]["mtp_block"] for state in sown]
    np.testing.assert_array_equal(blocks[0]["losses"], blocks[1]["losses"])
    np.testing.assert_array_equal(blocks[0]["weights"], blocks[1]["weights"])
