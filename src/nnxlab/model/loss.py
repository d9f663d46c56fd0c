"""Losses of next-token and multi-token prediction (MTP), as MaxText computes them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

EPSILON = 1e-8  # MaxText's globals.EPS: keeps an empty batch from dividing by zero


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy in nats without a one-hot of the vocabulary: [B, S, V], [B, S] -> [B, S]."""
    logits = logits.astype(jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - target_logits


def loss_mask(segment_ids: jax.Array) -> jax.Array:
    """1 where a token counts, 0 in padding: int [B, S] -> float32 [B, S].

    Segment ids number the packed documents 1, 2, 3, ...; used as weights they would count the
    second document twice (MaxText 092c3e871).
    """
    return (segment_ids != 0).astype(jnp.float32)


def roll_left(x: jax.Array) -> jax.Array:
    """Next position's value, zero at the end: [B, S] -> [B, S]."""
    return jnp.roll(x, -1, axis=1).at[:, -1].set(0)


def lm_loss(logits: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean cross-entropy over the positions that count: [B, S, V], [B, S], [B, S] -> []."""
    return jnp.sum(cross_entropy(logits, targets) * mask) / (jnp.sum(mask) + EPSILON)


def mtp_loss(losses, weights, factor: float) -> jax.Array:
    """The MTP term, pooled over the depths and not a mean of means: scalars -> [].

    It is ``factor * sum(losses) / sum(weights)``.

    Args:
      losses: One summed cross-entropy a depth, in nats.
      weights: One count of positions a depth.
      factor: ``mtp_loss_scaling_factor``.

    Source: MaxText 0.2.4, ``calculate_mtp_loss``; arXiv 2412.19437, equation 25.
    """
    pooled = jnp.sum(jnp.stack(losses)) / (jnp.sum(jnp.stack(weights)) + EPSILON)
    return factor * pooled


def mtp_acceptance(main: jax.Array, predictions: jax.Array, mask: jax.Array) -> jax.Array:
    """Share of depth-1 MTP predictions that the main head makes too: in [0, 1].

    Args:
      main: Tokens that the main head predicts, int [B, S].
      predictions: Tokens that the first MTP layer predicts, int [B, S].
      mask: Positions that count at depth 1, [B, S].
    """
    return jnp.sum((predictions == roll_left(main)) * mask) / (jnp.sum(mask) + EPSILON)


class Scores(NamedTuple):
    """What a head's logits come down to, without the logits themselves."""

    losses: jax.Array  # summed cross-entropy of the positions that count, []
    predictions: jax.Array  # the likeliest token, int32 [B, S]
