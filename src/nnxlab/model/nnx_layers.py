"""One DeepSeek-V3 layer in Flax NNX; attribute names are MaxText's, since paths are compared."""

import jax
from flax import nnx

from nnxlab import compat
from nnxlab.model import ops, weights
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.weights import Draws, Weight


def parameter(weight: Weight, draws: Draws) -> nnx.Param:
    """A parameter with ``weight``'s initial value and logical axes."""
    return compat.param(draws.initial(weight), weight.axes)


class Dense(nnx.Module):
    """A linear map without bias over the last ``axes`` axes: [..., I] -> [..., O]."""

    def __init__(self, weight: Weight, config: DeepSeekConfig, draws: Draws, axes: int = 1):
        self.kernel = parameter(weight, draws)
        self.dtype, self.axes = config.activation_dtype, axes

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.dense(x, self.kernel[...], self.dtype, self.axes)


class RMSNorm(nnx.Module):
    """Root mean square norm over the last axis: [..., D] -> [..., D]."""

    def __init__(self, weight: Weight, config: DeepSeekConfig, draws: Draws):
        self.scale = parameter(weight, draws)
        self.epsilon, self.dtype = config.norm_epsilon, config.activation_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.rms_norm(x, self.scale[...], self.epsilon, self.dtype)


class Mlp(nnx.Module):
    """SwiGLU: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: DeepSeekConfig, hidden: int, draws: Draws):
        for name, weight in weights.mlp(config, hidden).items():
            setattr(self, name, Dense(weight, config, draws))

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.swiglu(x, self.wi_0, self.wi_1, self.wo)


class Attention(nnx.Module):
    """Multi-head latent attention: [B, S, D], [B, S], [B, S] -> [B, S, D]."""

    def __init__(self, config: DeepSeekConfig, draws: Draws):
        self.config = config
        for name, weight in weights.attention(config).items():
            if name.endswith("norm"):
                setattr(self, name, RMSNorm(weight, config, draws))
            else:
                setattr(self, name, Dense(weight, config, draws, axes=2 if name == "out" else 1))

    def __call__(self, x, positions, segment_ids) -> jax.Array:
        c = self.config
        query = ops.mla_query(x, positions, c, self.wq_a, self.q_norm, self.wq_b)
        key, value = ops.mla_key_value(x, positions, c, self.wkv_a, self.kv_norm, self.wkv_b)
        return self.out(ops.attend(query, key, value, ops.attention_mask(segment_ids)))


class Gate(nnx.Module):
    """The router: sigmoid scores and the weight of every expert, [B, S, D] -> [B, S, E]."""

    def __init__(self, config: DeepSeekConfig, draws: Draws):
        table = weights.router(config)
        self.config = config
        self.kernel, self.bias = (parameter(table[n], draws) for n in ("kernel", "bias"))

    def __call__(self, x: jax.Array) -> jax.Array:
        logits = ops.dense(x, self.kernel[...], self.config.activation_dtype)
        return ops.route(jax.nn.sigmoid(logits), self.bias[...], self.config)


class Experts(nnx.Module):
    """Routed experts: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: DeepSeekConfig, draws: Draws):
        self.gate = Gate(config, draws)
        self.dtype = config.activation_dtype
        for name, weight in weights.experts(config).items():
            setattr(self, name, parameter(weight, draws))

    def __call__(self, x: jax.Array) -> jax.Array:
        chosen = self.gate(x)
        return ops.experts(x, chosen, self.wi_0[...], self.wi_1[...], self.wo[...], self.dtype)


class MoeBlock(nnx.Module):
    """Routed experts and the shared ones that every token sees: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: DeepSeekConfig, draws: Draws):
        self.MoeBlock_0 = Experts(config, draws)
        self.shared_experts = nnx.data(None)
        if config.num_shared_experts:
            hidden = config.num_shared_experts * config.moe_mlp_dim
            self.shared_experts = Mlp(config, hidden, draws)

    def __call__(self, x: jax.Array) -> jax.Array:
        routed = self.MoeBlock_0(x)
        return routed if self.shared_experts is None else routed + self.shared_experts(x)


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward, each with its residual.

    Args:
      config: The sizes.
      moe: Whether the feed-forward half is a mixture of experts or dense.
      rngs: The random stream ``params`` is used.
    """

    def __init__(self, config: DeepSeekConfig, *, moe: bool, rngs: nnx.Rngs):
        draws = Draws(rngs.params(), weights.layer(config, moe=moe))
        norm = weights.scale(config.emb_dim)
        self.pre_self_attention_layer_norm = RMSNorm(norm, config, draws)
        self.self_attention = Attention(config, draws)
        self.post_self_attention_layer_norm = RMSNorm(norm, config, draws)
        if moe:
            self.DeepSeekMoeBlock_0 = MoeBlock(config, draws)
        else:
            self.mlp = Mlp(config, config.mlp_dim, draws)
        self.moe = moe

    def __call__(self, x, positions, segment_ids) -> jax.Array:
        """[B, S, D], [B, S], [B, S] -> [B, S, D]."""
        normed = self.pre_self_attention_layer_norm(x)
        x = ops.by_batch(x + self.self_attention(normed, positions, segment_ids))
        feed_forward = self.DeepSeekMoeBlock_0 if self.moe else self.mlp
        return ops.by_batch(x + feed_forward(self.post_self_attention_layer_norm(x)))
