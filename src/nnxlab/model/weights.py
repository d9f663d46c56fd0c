"""Every weight of DeepSeek-V3, declared once: shape, logical axes, initial distribution.

Both implementations create their variables from these tables, so a weight cannot be sharded one
way in NNX and another way in Linen. Logical axis names are MaxText's, as read off it in
``nnxlab/reference/scan_axis_deepseek3_tiny.json``.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from nnxlab.model.config import DeepSeekConfig

TRUNCATED_STD = 0.87962566103423978  # of a standard normal cut at two standard deviations


@dataclasses.dataclass(frozen=True)
class Weight:
    """One weight of one layer; initially ``mean + std * draw``.

    Attributes:
      shape: Its shape, without a layer axis.
      axes: The logical axis name of each dimension; None for one that is never sharded.
      std: Standard deviation of the initial values; 0 for a constant.
      mean: Their mean.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    std: float = 0.0
    mean: float = 0.0

    @property
    def draws(self) -> int:
        """How many random numbers the initial value takes."""
        return math.prod(self.shape) if self.std else 0

    def initial(self, draws: jax.Array) -> jax.Array:
        """The initial value, float32, from ``draws`` numbers of unit variance."""
        if not self.std:
            return jnp.full(self.shape, self.mean, jnp.float32)
        return self.mean + self.std * draws.reshape(self.shape)

    def init(self, key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
        """The same as a Linen initialiser."""
        assert shape == self.shape, f"asked for {shape}, declared {self.shape}"
        return self.initial(unit_normal(key, self.draws)).astype(dtype)


class Draws:
    """Random numbers for many weights from one call of the generator.

    Threefry takes XLA's CPU compiler 0.2 s an instance: a draw a layer and not a draw a weight is
    what keeps the start of a model of this kind at two seconds instead of ten.
    """

    def __init__(self, key: jax.Array, weights: Iterable[Weight]):
        self._numbers = unit_normal(key, sum(weight.draws for weight in weights))
        self._used = 0

    def initial(self, weight: Weight) -> jax.Array:
        """The next weight's initial value.

        Raises:
          ValueError: The weights were not all announced to the constructor.
        """
        start, self._used = self._used, self._used + weight.draws
        if self._used > self._numbers.size:
            raise ValueError(f"{self._used} numbers used, {self._numbers.size} announced")
        return weight.initial(self._numbers[start : self._used])


def unit_normal(key: jax.Array, count: int) -> jax.Array:
    """``count`` draws of unit variance from a normal truncated at two sigma."""
    return jax.random.truncated_normal(key, -2.0, 2.0, (count,)) / TRUNCATED_STD


def kernel(shape: tuple[int, ...], *axes: str | None, fan_in: int | None = None) -> Weight:
    """A matrix of variance 1 / fan-in, which is its first dimension unless given."""
    return Weight(shape, axes, std=(fan_in or shape[0]) ** -0.5)


def scale(size: int) -> Weight:
    """RMSNorm's scale, all ones."""
    return Weight((size,), ("norm",), mean=1.0)


def attention(c: DeepSeekConfig) -> dict[str, Weight]:
    """Multi-head latent attention: D->Q->H(N+R), D->K+R, K->H(N+W), HW->D."""
    d, h, q, k = c.emb_dim, c.num_heads, c.q_lora_rank, c.kv_lora_rank
    nope, rope, w = c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
    return {
        "wq_a": kernel((d, q), "embed", "q_lora_up_proj"),
        "q_norm": scale(q),
        "wq_b": kernel((q, h, nope + rope), "q_lora", "q_heads", "kv"),
        "wkv_a": kernel((d, k + rope), "embed", "kv_lora_up_proj"),
        "kv_norm": scale(k),
        "wkv_b": kernel((k, h, nope + w), "kv_lora", "kv_heads", "kv_head_dim"),
        "out": kernel((h, w, d), "heads", "kv", "embed", fan_in=h * w),
    }


def mlp(c: DeepSeekConfig, hidden: int) -> dict[str, Weight]:
    """SwiGLU of ``hidden`` units: D->F twice, F->D."""
    return {
        "wi_0": kernel((c.emb_dim, hidden), "embed", "mlp"),
        "wi_1": kernel((c.emb_dim, hidden), "embed", "mlp"),
        "wo": kernel((hidden, c.emb_dim), "mlp", "embed"),
    }


def router(c: DeepSeekConfig) -> dict[str, Weight]:
    """The gate D->E and its bias, which only takes part in the choice of experts."""
    return {
        "kernel": kernel((c.emb_dim, c.num_experts), "embed_moe", None),
        "bias": Weight((c.num_experts,), (None,)),
    }


def experts(c: DeepSeekConfig) -> dict[str, Weight]:
    """E experts: D->G twice, G->D."""
    e, d, g = c.num_experts, c.emb_dim, c.moe_mlp_dim
    return {
        "wi_0": kernel((e, d, g), "exp", "embed_moe", "mlp_moe", fan_in=d),
        "wi_1": kernel((e, d, g), "exp", "embed_moe", "mlp_moe", fan_in=d),
        "wo": kernel((e, g, d), "exp", "mlp_moe", "embed_moe", fan_in=g),
    }


def layer(c: DeepSeekConfig, *, moe: bool) -> list[Weight]:
    """Every weight of one layer, for counting; norms take no draws and are left out."""
    tables = [attention(c)]
    if moe:
        tables += [router(c), experts(c)]
        if c.num_shared_experts:
            tables.append(mlp(c, c.num_shared_experts * c.moe_mlp_dim))
    else:
        tables.append(mlp(c, c.mlp_dim))
    return list(itertools.chain.from_iterable(table.values() for table in tables))


def embedding(c: DeepSeekConfig) -> Weight:
    """The token embedding, [V, D], of variance 1 / D (a lookup's fan-in, as MaxText has it)."""
    return Weight((c.vocab_size, c.emb_dim), ("vocab", "embed_vocab"), std=c.emb_dim**-0.5)


def logits(c: DeepSeekConfig) -> Weight:
    """The output head, [D, V]."""
    return kernel((c.emb_dim, c.vocab_size), "embed_vocab", "vocab")


def mtp_projection(c: DeepSeekConfig) -> Weight:
    """From the concatenated embedding and hidden state, [2D, D]."""
    return kernel((2 * c.emb_dim, c.emb_dim), "concat_embed", "embed")
