"""The arithmetic of DeepSeek-V3, pure: what the NNX and the Linen model share.

Letters: B batch, S position, T position attended to, D model, H heads, N/R/W head sizes
(no-position, rotary, value), Q/K low ranks, E experts, G expert hidden size, V vocabulary.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from nnxlab.model.config import DeepSeekConfig
from nnxlab.rules import BATCH_AXES

Op = Callable[[jax.Array], jax.Array]


def by_batch(x: jax.Array) -> jax.Array:
    """Constrains an activation to be split by its rows, [B, ...], on the mesh that is set.

    Without it the partitioner may follow the weights, which fsdp splits by D, and hold every row
    on every device. Does nothing where no mesh is set (``jax.set_mesh``).
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    axes = tuple(axis for axis in BATCH_AXES if sizes.get(axis, 1) > 1)
    if not axes:
        return x
    spec = PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
    return jax.lax.with_sharding_constraint(x, spec)


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float, dtype) -> jax.Array:
    """RMSNorm over the last axis, its mean square in float32: [..., D], [D] -> [..., D]."""
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean_square + epsilon)).astype(dtype) * scale.astype(dtype)


def dense(x: jax.Array, kernel: jax.Array, dtype, axes: int = 1) -> jax.Array:
    """Contracts the last ``axes`` axes of ``x`` with the first of ``kernel``.

    Spelled as ``lax.dot_general`` and not ``einsum`` because that is the operation that
    MaxText's dense layers call, and so the one that its quantization rules name. Of two matrices,
    since XLA's CPU backend takes two to four times as long where a kernel has three dimensions.
    """
    kept, size = x.shape[: x.ndim - axes], math.prod(kernel.shape[:axes])
    rows, matrix = x.reshape(-1, size).astype(dtype), kernel.reshape(size, -1).astype(dtype)
    out = jax.lax.dot_general(rows, matrix, (((1,), (0,)), ((), ())))
    return out.reshape(*kept, *kernel.shape[axes:])


def swiglu(x: jax.Array, wi_0: Op, wi_1: Op, wo: Op) -> jax.Array:
    """SwiGLU (arXiv 2002.05202): wo(silu(wi_0 x) * wi_1 x), [B, S, D] -> [B, S, D]."""
    return wo(jax.nn.silu(wi_0(x)) * wi_1(x))


def yarn_frequencies(config: DeepSeekConfig) -> jax.Array:
    """YaRN's corrected rotary frequencies, [R/2], in radians a position (arXiv 2309.00071)."""
    dim, half = config.qk_rope_head_dim, config.qk_rope_head_dim // 2
    freqs = config.rope_theta ** (-2.0 * jnp.arange(half, dtype=jnp.float32) / dim)

    def dimension_of(rotations: float) -> float:
        wavelength = config.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(config.rope_theta))

    low = max(math.floor(dimension_of(config.beta_fast)), 0)
    high = min(math.ceil(dimension_of(config.beta_slow)), dim - 1)
    ramp = (jnp.arange(half, dtype=jnp.float32) - low) / max(high - low, 0.001)
    keep = 1 - jnp.clip(ramp, 0, 1)
    return freqs / config.rope_factor * (1 - keep) + freqs * keep


def rotate(x: jax.Array, positions: jax.Array, config: DeepSeekConfig) -> jax.Array:
    """Rotary embedding of interleaved pairs, halves concatenated on the way out.

    [B, S, H, R], [B, S] -> [B, S, H, R]. Scores are invariant to the output's layout as long as
    query and key share it.
    """
    angles = positions[..., None, None].astype(jnp.float32) * yarn_frequencies(config)
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return rotated.astype(x.dtype)


def softmax_scale(config: DeepSeekConfig) -> float:
    """1/sqrt(N+R), times YaRN's squared temperature where the context was stretched."""
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    if config.max_position_embeddings > config.original_max_position_embeddings:
        scale *= (0.1 * config.mscale * math.log(config.rope_factor) + 1.0) ** 2
    return scale


def attention_mask(segment_ids: jax.Array) -> jax.Array:
    """Causal, and within one document only: [B, S] -> bool [B, S, T]."""
    position = jnp.arange(segment_ids.shape[1])
    same_document = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same_document & (position[:, None] >= position[None, :])


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention: [B, S, H, N+R], [B, T, H, N+R], [B, T, H, W] -> [B, S, H, W]."""
    scores = jnp.einsum("bshn,bthn->bhst", query, key)
    lowest = -0.7 * float(jnp.finfo(scores.dtype).max)
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, lowest), axis=-1)
    return jnp.einsum("bhst,bthw->bshw", weights.astype(value.dtype), value)


def mla_query(x: jax.Array, positions: jax.Array, config, wq_a: Op, q_norm: Op, wq_b: Op):
    """Multi-head latent attention's query, scaled: [B, S, D] -> [B, S, H, N+R]."""
    query = wq_b(q_norm(wq_a(x)))
    nope, rope = jnp.split(query, [config.qk_nope_head_dim], axis=-1)
    query = jnp.concatenate([nope, rotate(rope, positions, config)], axis=-1)
    return query * softmax_scale(config)


def mla_key_value(x: jax.Array, positions: jax.Array, config, wkv_a: Op, kv_norm: Op, wkv_b: Op):
    """Key and value from one latent: [B, S, D] -> [B, S, H, N+R], [B, S, H, W].

    The rotary part of the key is shared by all heads (arXiv 2405.04434, section 2.1).
    """
    latent, rope = jnp.split(wkv_a(x), [config.kv_lora_rank], axis=-1)
    nope, value = jnp.split(wkv_b(kv_norm(latent)), [config.qk_nope_head_dim], axis=-1)
    rope = rotate(rope[:, :, None, :], positions, config)
    rope = jnp.broadcast_to(rope, (*nope.shape[:-1], config.qk_rope_head_dim))
    return jnp.concatenate([nope, rope], axis=-1), value


def route(scores: jax.Array, bias: jax.Array, config: DeepSeekConfig) -> jax.Array:
    """Weights of all experts, zero for those not chosen: [B, S, E], [E] -> [B, S, E].

    The bias takes part in the choice and not in the weights: DeepSeek-V3's balancing without an
    auxiliary loss (arXiv 2412.19437, equations 12 to 16).
    """
    _, chosen = jax.lax.top_k(scores + bias.astype(scores.dtype), config.num_experts_per_tok)
    is_chosen = (chosen[..., None] == jnp.arange(config.num_experts)).any(axis=-2)
    weights = jnp.where(is_chosen, scores, 0)
    return weights / (weights.sum(-1, keepdims=True) + 1e-20) * config.routed_scaling_factor


def experts(x: jax.Array, weights: jax.Array, wi_0, wi_1, wo, dtype) -> jax.Array:
    """All experts by dense matmul: [B, S, D], [B, S, E] -> [B, S, D].

    Every expert sees every token: simple, exact, and the form whose sharding MaxText's
    ``sparse_matmul=False`` has. Kernels: wi_0, wi_1 [E, D, G], wo [E, G, D].

    The experts lie side by side, as one SwiGLU of E*G hidden units whose units are weighted before
    wo sums over them. So no [B, S, E, D] exists, and XLA's CPU backend gets plain matmuls: it runs
    these four times as fast, forward and backward, as the einsums "bsd,edg->bseg" and
    "bseg,egd->bsed" that MaxText writes.
    """
    e, d, g = wi_0.shape
    rows, each = x.astype(dtype).reshape(-1, d), weights.reshape(-1, e, 1)

    def wide(kernel: jax.Array) -> jax.Array:
        return jnp.moveaxis(kernel.astype(dtype), 1, 0).reshape(d, e * g)

    gate = jnp.einsum("td,dh->th", rows, wide(wi_0))
    up = jnp.einsum("td,dh->th", rows, wide(wi_1))
    hidden = (jax.nn.silu(gate) * up).reshape(-1, e, g) * each.astype(jnp.float32)
    hidden = hidden.astype(dtype).reshape(-1, e * g)
    return jnp.einsum("th,hd->td", hidden, wo.astype(dtype).reshape(e * g, d)).reshape(x.shape)
