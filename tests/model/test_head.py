import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from nnxlab.model import head, loss


def _plain(hidden, kernel, targets, mask):
    logits = hidden @ kernel
    predictions = jnp.argmax(logits, axis=-1)
    return jnp.sum(loss.cross_entropy(logits, targets) * mask), predictions


def _inputs(seed, vocabulary, scale=1.0):
    random = np.random.default_rng(seed)
    hidden = jnp.asarray(random.normal(size=(2, 3, 4)), jnp.float32)
    kernel = jnp.asarray(random.normal(scale=scale, size=(4, vocabulary)), jnp.float32)
    targets = jnp.asarray(random.integers(0, vocabulary, (2, 3)))
    return hidden, kernel, targets, jnp.asarray(random.integers(0, 2, (2, 3)), jnp.float32)


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(head, "WIDEST", 8)
    monkeypatch.setattr(head, "NARROWEST", 1)


@given(st.integers(1, 200_000))
def test_the_width_divides_the_vocabulary_and_keeps_the_bounds(vocabulary):
    width = head.width(vocabulary)
    assert vocabulary % width == 0
    assert width == vocabulary or head.NARROWEST <= width <= head.WIDEST


def test_whole_lanes_come_first():
    assert head.width(129_280) == 1_280
    assert head.width(50_257) == 1_733  # 29 * 1,733: no divisor has whole lanes
    assert head.width(32_003) == 32_003  # a prime


@pytest.mark.parametrize("vocabulary", [7, 8, 24, 35])
@pytest.mark.parametrize("seed", range(3))
def test_slices_change_neither_losses_nor_predictions_nor_gradients(narrow, vocabulary, seed):
    hidden, kernel, targets, mask = _inputs(seed, vocabulary)

    def sliced(hidden, kernel):
        return head.score(hidden, kernel, targets, mask, jnp.float32)

    def plain(hidden, kernel):
        return _plain(hidden, kernel, targets, mask)

    ours, theirs = (
        jax.value_and_grad(f, argnums=(0, 1), has_aux=True)(hidden, kernel) for f in (sliced, plain)
    )
    np.testing.assert_array_equal(ours[0][1], theirs[0][1])
    for a, b in zip(
        jax.tree.leaves((ours[0][0], ours[1])),
        jax.tree.leaves((theirs[0][0], theirs[1])),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_first_of_equal_logits_is_predicted_as_argmax_does(narrow):
    hidden, kernel, targets, mask = _inputs(0, 24)
    same = jnp.ones_like(kernel)
    assert (head.score(hidden, same, targets, mask, jnp.float32).predictions == 0).all()
    last_two = same.at[:, -2:].set(jnp.sign(hidden[0, 0])[:, None] * 9)
    predicted = head.score(hidden, last_two, targets, mask, jnp.float32).predictions
    np.testing.assert_array_equal(predicted, jnp.argmax(hidden @ last_two, axis=-1))


def test_large_logits_do_not_overflow(narrow):
    hidden, kernel, targets, mask = _inputs(0, 24, scale=1e3)
    found = head.score(hidden, kernel, targets, mask, jnp.float32).losses
    assert jnp.isfinite(found)
    np.testing.assert_allclose(found, _plain(hidden, kernel, targets, mask)[0], rtol=1e-5)
