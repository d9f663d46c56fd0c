import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import devices
from nnxlab.model import config, inputs, linen_model, loss, nnx_model, port
from nnxlab.training import MTP_COLLECTIONS, mtp_term


def test_cross_entropy_is_minus_the_log_probability():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 7)), jnp.float32)
    targets = jnp.array([[0, 6, 3], [1, 1, 2]])
    expected = -jax.nn.log_softmax(logits)[*np.indices((2, 3)), targets]
    np.testing.assert_allclose(loss.cross_entropy(logits, targets), expected, rtol=1e-5)


VOCABULARY = 997  # no other dimension has this size


def _one_hots(equations):
    """Equations that spread token ids, integers, over the vocabulary: [..., V], not a float."""
    found = []
    for equation in equations:
        ids = [v for v in equation.invars if jnp.issubdtype(v.aval.dtype, jnp.integer)]
        for out in (v.aval for v in equation.outvars):
            wide = out.shape[-1:] == (VOCABULARY,) and out.size > VOCABULARY
            if ids and wide and not jnp.issubdtype(out.dtype, jnp.floating):
                found.append(f"{equation.primitive.name}: {out}")
    return found


def _naive_cross_entropy(logits, targets):
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(targets, VOCABULARY)).sum(-1)


@pytest.mark.parametrize("of", [lambda f: f, jax.grad], ids=["forward", "gradient"])
def test_no_one_hot_of_the_vocabulary_is_made(equations, of):
    logits, targets = jnp.zeros((2, 3, VOCABULARY)), jnp.zeros((2, 3), int)

    def summed(cross_entropy):
        return of(lambda logits, targets: cross_entropy(logits, targets).sum())

    # The naive form shows that the search would find one.
    assert _one_hots(equations(summed(_naive_cross_entropy), logits, targets))
    assert not _one_hots(equations(summed(loss.cross_entropy), logits, targets))


def test_no_one_hot_is_made_anywhere_in_the_model(equations):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1, vocab_size=VOCABULARY)
    graphdef, state = nnx.split(nnx_model.abstract(sizes))

    def run(state, batch):
        model = nnx.merge(graphdef, state)
        mask = loss.loss_mask(batch.target_mask)
        return loss.lm_loss(model(*batch), batch.targets, mask) + mtp_term(model)

    assert not _one_hots(equations(run, state, inputs.synthetic(sizes, batch=2, length=8)))


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
    main = jnp.array([[0, 1, 2, 3]])
    mask = jnp.array([[1.0, 1, 1, 0]])
    assert float(loss.mtp_acceptance(main, jnp.array([[1, 2, 3, 0]]), mask)) == pytest.approx(1)
    assert float(loss.mtp_acceptance(main, jnp.array([[1, 2, 9, 0]]), mask)) == pytest.approx(2 / 3)


@pytest.fixture(scope="module")
def packed(sizes):
    """One batch of rows whose mask is 1, 1, ... and the same with the mask 1, 1, 2, 2, ..."""
    one = inputs.synthetic(sizes, batch=2, length=8)
    return one, one._replace(target_mask=jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]] * 2))


def test_packed_documents_weigh_once_in_nnx(packed, model):
    # F17 (MaxText 092c3e871, 80d81d9ae): a mask made of segment ids weighs the second twice.
    graphdef, state = nnx.split(model)

    def terms(state, batch):
        run = nnx.merge(graphdef, state, copy=True)
        mask = loss.loss_mask(batch.target_mask)
        lm = loss.lm_loss(run(*batch), batch.targets, mask)
        return jnp.stack([mtp_term(run), lm])

    terms = jax.jit(terms, compiler_options=devices.one_shot())
    one, two = (terms(state, batch) for batch in packed)
    assert (one > 0).all()
    np.testing.assert_array_equal(one, two)


def test_packed_documents_weigh_once_in_linen(packed, model, sizes):
    variables, linen = port.to_linen(model), linen_model.DeepSeek(sizes)

    def sums(batch):
        _, left = linen.apply(variables, *batch, mutable=MTP_COLLECTIONS)
        return jnp.stack([left["mtp_losses"]["mtp_block"][n][0] for n in ("losses", "weights")])

    sums = jax.jit(sums, compiler_options=devices.one_shot())
    one, two = (sums(batch) for batch in packed)
    assert one[1] == 2 * 7  # rolled by one, each row of 8 has 7 targets left
    np.testing.assert_array_equal(one, two)
