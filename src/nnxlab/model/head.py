"""Cross-entropy over a large vocabulary, a slice at a time: the logits never exist as a whole.

At 129,280 tokens the logits of one head are a thousand times larger than the hidden states. Only
their log-sum-exp, the target's logit and the likeliest token are wanted; the backward pass
computes each slice's logits anew, which costs less than storing and rereading them.
"""

from functools import partial

import jax
import jax.numpy as jnp

from nnxlab.model import ops
from nnxlab.model.loss import Scores

WIDEST = 2_048  # tokens of one slice: its logits fit a CPU core's cache
NARROWEST = 256  # a vocabulary with no divisor in between is taken whole
LANES = 128  # of a TPU's vector registers


def score(hidden: jax.Array, kernel: jax.Array, targets, mask, dtype) -> Scores:
    """Losses and predictions of an output head: [B, S, D], [D, V], [B, S], [B, S] -> Scores."""
    losses, predictions = _per_token(hidden.astype(dtype), _slices(kernel.astype(dtype)), targets)
    return Scores(jnp.sum(losses * mask), predictions)


def width(vocab_size: int) -> int:
    """Tokens in one slice: the largest divisor of V within the bounds, whole lanes first."""
    bounds = range(min(vocab_size, WIDEST), NARROWEST - 1, -1)
    fitting = [n for n in bounds if vocab_size % n == 0]
    return next((n for n in fitting if n % LANES == 0), max(fitting, default=vocab_size))


def _slices(kernel: jax.Array) -> jax.Array:
    """[D, V] -> [V/C, D, C]; slice i holds the tokens i, i + V/C, i + 2 V/C, ...

    Strided and not contiguous, so that a vocabulary sharded over devices leaves each of them its
    part of every slice.
    """
    d, v = kernel.shape
    return jnp.moveaxis(kernel.reshape(d, width(v), v // width(v)), 2, 0)


def _first(found: jax.Array) -> jax.Array:
    """Index of the first True along the last axis; XLA's CPU backend does not vectorize argmax."""
    index = jax.lax.broadcasted_iota(jnp.float32, found.shape, found.ndim - 1)
    return jnp.where(found, index, jnp.inf).min(axis=-1).astype(jnp.int32)


def _logits(hidden: jax.Array, kernel: jax.Array) -> jax.Array:
    return ops.by_batch(ops.dense(hidden, kernel, kernel.dtype).astype(jnp.float32))


@jax.custom_vjp
def _per_token(hidden: jax.Array, slices: jax.Array, targets: jax.Array):
    """[B, S, D], [N, D, C], int [B, S] -> losses in nats and predictions, [B, S] each."""
    return _forward(hidden, slices, targets)[0]


def _forward(hidden, slices, targets):
    count = len(slices)

    def add(carry, numbered):
        number, kernel = numbered
        logits = _logits(hidden, kernel)
        highest, total, target, best = carry
        here = logits.max(axis=-1)
        token = _first(logits >= here[..., None]) * count + number
        is_better = (here > highest) | ((here == highest) & (token < best))
        new = jnp.maximum(highest, here)
        total = total * jnp.exp(highest - new) + jnp.exp(logits - new[..., None]).sum(axis=-1)
        is_here, place = _place(targets, number, count)
        value = jnp.take_along_axis(logits, place[..., None], axis=-1)[..., 0]
        target = jnp.where(is_here, value, target)
        return (new, total, target, jnp.where(is_better, token, best)), None

    lowest, zeros = jnp.full(targets.shape, -jnp.inf), jnp.zeros(targets.shape)
    start = jax.tree.map(ops.by_batch, (lowest, zeros, zeros, jnp.zeros(targets.shape, jnp.int32)))
    (highest, total, target, best), _ = jax.lax.scan(add, start, (jnp.arange(count), slices))
    normalizer = highest + jnp.log(total)
    return (normalizer - target, best), (hidden, slices, targets, normalizer)


def _backward(kept, cotangents):
    hidden, slices, targets, normalizer = kept
    by_loss, count = cotangents[0], len(slices)

    def add(total, numbered):
        number, kernel = numbered
        is_here, place = _place(targets, number, count)
        by_logit = jnp.exp(_logits(hidden, kernel) - normalizer[..., None]) * by_loss[..., None]
        at_target = partial(jnp.take_along_axis, indices=place[..., None], axis=-1)
        by_target = jax.linear_transpose(at_target, by_logit)
        (scattered,) = by_target(jnp.where(is_here, by_loss, 0)[..., None])
        by_logit = (by_logit - scattered).astype(kernel.dtype)
        total += jnp.einsum("bsc,dc->bsd", by_logit, kernel).astype(jnp.float32)
        return total, jnp.einsum("bsd,bsc->dc", hidden, by_logit)

    start = ops.by_batch(jnp.zeros(hidden.shape, jnp.float32))
    by_hidden, by_slices = jax.lax.scan(add, start, (jnp.arange(count), slices))
    return by_hidden.astype(hidden.dtype), by_slices, None


_per_token.defvjp(_forward, _backward)


def _place(targets: jax.Array, number: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Which targets are in slice ``number``, and where in it: bool and int, [B, S] each."""
    return targets % count == number, targets // count
