"""Sizes of the specimen: DeepSeek-V3 as MaxText configures it, from 671 B to a laptop's size."""

import dataclasses

import jax
import jax.numpy as jnp

REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "minimal": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepSeekConfig:
    """Sizes and choices of one DeepSeek-V3 model.

    The letter after each size is the einsum letter that the docstrings of this package use.
    Names follow MaxText's ``deepseek3-*.yml`` (release 0.2.4), so that a config can be compared
    line by line; a field that is missing here has the one value that DeepSeek-V3 uses.
    """

    emb_dim: int  # D
    mlp_dim: int  # F: hidden size of the dense layers' MLP
    moe_mlp_dim: int  # G: hidden size of one expert
    num_decoder_layers: int  # dense_layers and moe_layers together
    first_num_dense_layers: int
    vocab_size: int  # V
    num_heads: int  # H
    num_experts: int  # E
    num_experts_per_tok: int  # T
    q_lora_rank: int  # Q
    kv_lora_rank: int  # K
    qk_nope_head_dim: int  # N
    qk_rope_head_dim: int  # R
    v_head_dim: int  # W
    num_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    rope_theta: float = 10_000.0
    rope_factor: float = 40.0
    max_position_embeddings: int = 163_840
    original_max_position_embeddings: int = 4_096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    norm_epsilon: float = 1e-6
    mtp_num_layers: int = 0
    mtp_loss_scaling_factor: float = 0.1
    param_scan_axis: int = 1  # where the layer axis of a stacked weight stands
    remat_policy: str = "none"  # a key of REMAT_POLICIES
    dtype: str = "float32"  # activations; weights stay float32

    def __post_init__(self):
        """Collects every contradiction between the sizes and raises once."""
        faults = [
            f"{field.name}={getattr(self, field.name)} must be at least {_LEAST.get(field.name, 1)}"
            for field in dataclasses.fields(self)
            if field.type is int
            and field.name != "param_scan_axis"
            and getattr(self, field.name) < _LEAST.get(field.name, 1)
        ]
        if not 0 <= self.first_num_dense_layers <= self.num_decoder_layers:
            faults.append(
                f"first_num_dense_layers={self.first_num_dense_layers} must lie between 0 and "
                f"num_decoder_layers={self.num_decoder_layers}"
            )
        if self.num_experts_per_tok > self.num_experts:
            faults.append(
                f"num_experts_per_tok={self.num_experts_per_tok} exceeds "
                f"num_experts={self.num_experts}"
            )
        if self.qk_rope_head_dim % 2:
            faults.append(f"qk_rope_head_dim={self.qk_rope_head_dim} must be even")
        if self.remat_policy not in REMAT_POLICIES:
            faults.append(
                f"remat_policy={self.remat_policy!r} is none of {', '.join(REMAT_POLICIES)}"
            )
        if self.dtype not in ("float32", "bfloat16"):
            faults.append(f"dtype={self.dtype!r} is neither float32 nor bfloat16")
        if faults:
            raise ValueError("DeepSeekConfig: " + "; ".join(faults))

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts: all but the first dense ones."""
        return self.num_decoder_layers - self.first_num_dense_layers

    @property
    def activation_dtype(self) -> jnp.dtype:
        """The dtype in which activations are computed."""
        return jnp.dtype(self.dtype)

    def replace(self, **changes) -> "DeepSeekConfig":
        """Returns a copy with ``changes``, validated again."""
        return dataclasses.replace(self, **changes)


_LEAST = {"first_num_dense_layers": 0, "mtp_num_layers": 0, "num_shared_experts": 0}

# MaxText 0.2.4, configs/models/deepseek3-671b.yml; the sizes published with DeepSeek-V3
# (arXiv 2412.19437, section 4.2).
DEEPSEEK3_671B = DeepSeekConfig(
    emb_dim=7168,
    mlp_dim=18432,
    moe_mlp_dim=2048,
    num_decoder_layers=61,
    first_num_dense_layers=3,
    vocab_size=129_280,
    num_heads=128,
    num_experts=256,
    num_experts_per_tok=8,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
)

# MaxText 0.2.4, configs/models/deepseek3-tiny.yml: the depth, vocabulary and head sizes stay.
DEEPSEEK3_TINY = DEEPSEEK3_671B.replace(
    emb_dim=64,
    mlp_dim=64,
    moe_mlp_dim=64,
    num_heads=4,
    num_experts=16,
    q_lora_rank=32,
    kv_lora_rank=16,
)

# The size of the reference dump reference/deepseek3_small.npz: seconds on a laptop.
DEEPSEEK3_SMALL = DeepSeekConfig(
    emb_dim=32,
    mlp_dim=48,
    moe_mlp_dim=24,
    num_decoder_layers=5,
    first_num_dense_layers=2,
    vocab_size=256,
    num_heads=4,
    num_experts=8,
    num_experts_per_tok=2,
    q_lora_rank=16,
    kv_lora_rank=8,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
)

CONFIGS = {
    "small": DEEPSEEK3_SMALL,
    "tiny": DEEPSEEK3_TINY,
    "deepseek3-small": DEEPSEEK3_SMALL,
    "deepseek3-tiny": DEEPSEEK3_TINY,
    "deepseek3-671b": DEEPSEEK3_671B,
}


def config_named(name: str, **changes) -> DeepSeekConfig:
    """Returns the config called ``name`` with ``changes``.

    Raises:
      ValueError: No config has that name; the message lists those there are.
    """
    if name not in CONFIGS:
        raise ValueError(f"unknown config {name!r}; known: {', '.join(CONFIGS)}")
    return CONFIGS[name].replace(**changes)
