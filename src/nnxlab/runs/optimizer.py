"""AdamW, its schedule and its clipping, with MaxText's defaults."""

import jax.numpy as jnp
import optax

LEARNING_RATE = 3e-5  # MaxText 0.2.4, configs/base.yml, as all below
FINAL_FRACTION = 0.1
WARMUP_FRACTION = 0.1
CLIPPING = 1.0


def schedule(steps: int, peak: float = LEARNING_RATE) -> optax.Schedule:
    """Linear warm-up from 0, so the first step changes nothing, then a cosine to a tenth.

    Source: MaxText 0.2.4, ``create_learning_rate_schedule``.
    """
    warmup = max(1, int(steps * WARMUP_FRACTION))
    rest = max(1, steps - warmup)

    def cosine(step):
        part = step / (rest - 1) if rest > 1 else 1.0
        high = 0.5 * (jnp.cos(jnp.pi * part) + 1)
        return peak * (high + FINAL_FRACTION * (1 - high))

    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), cosine], [warmup])


def adamw(steps: int, peak: float = LEARNING_RATE) -> optax.GradientTransformation:
    """Global-norm clipping, then AdamW with decoupled weight decay."""
    rule = optax.adamw(schedule(steps, peak), b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)
    return optax.chain(optax.clip_by_global_norm(CLIPPING), rule)
