"""One DeepSeek-V3 layer in Flax Linen; names as in ``nnx_layers``, so that paths agree."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from nnxlab.model import ops, weights
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.weights import Weight


def parameter(module: nn.Module, name: str, weight: Weight) -> jax.Array:
    """A parameter of ``module`` with ``weight``'s shape, logical axes and initialiser."""
    init = nn.with_logical_partitioning(weight.init, weight.axes)
    return module.param(name, init, weight.shape, jnp.float32)


class Dense(nn.Module):
    """A linear map without bias over the last ``axes`` axes: [..., I] -> [..., O]."""

    weight: Weight
    config: DeepSeekConfig
    axes: int = 1

    def setup(self):
        self.kernel = parameter(self, "kernel", self.weight)

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.dense(x, self.kernel, self.config.activation_dtype, self.axes)


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis: [..., D] -> [..., D]."""

    weight: Weight
    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = parameter(self, "scale", self.weight)
        return ops.rms_norm(x, scale, self.config.norm_epsilon, self.config.activation_dtype)


class Mlp(nn.Module):
    """SwiGLU: [B, S, D] -> [B, S, D]."""

    config: DeepSeekConfig
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        table = weights.mlp(self.config, self.hidden)
        return ops.swiglu(x, *(Dense(table[n], self.config, name=n) for n in table))


class Attention(nn.Module):
    """Multi-head latent attention: [B, S, D], [B, S], [B, S] -> [B, S, D]."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x, positions, segment_ids) -> jax.Array:
        c, table = self.config, weights.attention(self.config)
        part = {
            name: RMSNorm(weight, c, name=name)
            if name.endswith("norm")
            else Dense(weight, c, axes=2 if name == "out" else 1, name=name)
            for name, weight in table.items()
        }
        query = ops.mla_query(x, positions, c, part["wq_a"], part["q_norm"], part["wq_b"])
        key, value = ops.mla_key_value(
            x, positions, c, part["wkv_a"], part["kv_norm"], part["wkv_b"]
        )
        return part["out"](ops.attend(query, key, value, ops.attention_mask(segment_ids)))


class Gate(nn.Module):
    """The router: sigmoid scores and the weight of every expert, [B, S, D] -> [B, S, E]."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        table = weights.router(self.config)
        kernel, bias = (parameter(self, name, table[name]) for name in ("kernel", "bias"))
        scores = jax.nn.sigmoid(ops.dense(x, kernel, self.config.activation_dtype))
        return ops.route(scores, bias, self.config)


class Experts(nn.Module):
    """Routed experts: [B, S, D] -> [B, S, D]."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        chosen = Gate(self.config, name="gate")(x)
        table = weights.experts(self.config)
        kernels = (parameter(self, name, table[name]) for name in ("wi_0", "wi_1", "wo"))
        return ops.experts(x, chosen, *kernels, self.config.activation_dtype)


class MoeBlock(nn.Module):
    """Routed experts and the shared ones that every token sees: [B, S, D] -> [B, S, D]."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        routed = Experts(self.config, name="MoeBlock_0")(x)
        if not self.config.num_shared_experts:
            return routed
        hidden = self.config.num_shared_experts * self.config.moe_mlp_dim
        return routed + Mlp(self.config, hidden, name="shared_experts")(x)


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each with its residual.

    Returns a pair, as ``nn.scan`` wants it: the carry [B, S, D] and no output.
    """

    config: DeepSeekConfig
    moe: bool

    @nn.compact
    def __call__(self, x, positions, segment_ids) -> tuple[jax.Array, None]:
        c, norm = self.config, weights.scale(self.config.emb_dim)
        normed = RMSNorm(norm, c, name="pre_self_attention_layer_norm")(x)
        x = ops.by_batch(x + Attention(c, name="self_attention")(normed, positions, segment_ids))
        normed = RMSNorm(norm, c, name="post_self_attention_layer_norm")(x)
        if self.moe:
            return ops.by_batch(x + MoeBlock(c, name="DeepSeekMoeBlock_0")(normed)), None
        return ops.by_batch(x + Mlp(c, c.mlp_dim, name="mlp")(normed)), None
