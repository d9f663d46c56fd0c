"""Logical axis names to PartitionSpecs: MaxText's rules and how they are applied."""

from collections.abc import Sequence

import flax.linen as nn
from jax.sharding import PartitionSpec

from nnxlab.compat import Names

Rules = Sequence[tuple[str, str | tuple[str, ...]]]

_FSDP = ("fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "expert")
_FSDP_ONLY = ("fsdp", "context", "context_usp_ulysses", "expert")
_MLP = ("fsdp_transpose", "tensor", "tensor_sequence", "autoregressive")
_HEADS = ("tensor", "tensor_sequence", "autoregressive")

# MaxText 0.2.4, configs/base.yml, logical_axis_rules: those that name a weight of this model. A
# name that stands twice falls back to its second rule where the first one's axes are taken.
# concat_embed has no rule there and is replicated; here that is said.
MAXTEXT_RULES: Rules = (
    ("vocab", _HEADS),
    ("embed_vocab", _FSDP),
    ("heads", _HEADS),
    ("q_heads", _HEADS),
    ("kv_heads", _HEADS),
    ("kv", ()),
    ("kv_head_dim", ()),
    ("q_lora", _FSDP),
    ("q_lora", _FSDP_ONLY),
    ("q_lora_up_proj", ()),
    ("kv_lora", _FSDP),
    ("kv_lora", _FSDP_ONLY),
    ("kv_lora_up_proj", ()),
    ("exp", "expert"),
    ("mlp_moe", _MLP),
    ("embed_moe", _FSDP[:-1]),
    ("embed_moe", _FSDP_ONLY[:-1]),
    ("mlp", _MLP),
    ("embed", _FSDP),
    ("embed", _FSDP_ONLY),
    ("norm", ("tensor",)),
    ("layers", "stage"),
    ("dense_layers", ()),
    ("moe_layers", ()),
    ("concat_embed", ()),
)


class ShardingError(ValueError):
    """Names, rules, mesh and shapes do not fit, or too much of a model is replicated."""


def resolve(names: Names, mesh, rules: Rules = MAXTEXT_RULES) -> PartitionSpec:
    """The PartitionSpec of a variable: Linen's first-free-match, axes of size 1 left out.

    Args:
      names: One logical name, or None, for each dimension.
      mesh: A Mesh or AbstractMesh.
      rules: Pairs of a logical name and the mesh axes it is sharded over.

    Raises:
      ShardingError: A name has no rule or stands twice, or no rule mentions an axis of the mesh.
    """
    known = {name for name, _ in rules}
    unknown = [name for name in names if name is not None and name not in known]
    if unknown:
        raise ShardingError(f"no rule for logical axis {', '.join(map(repr, unknown))}")
    twice = sorted({name for name in names if name is not None and names.count(name) > 1})
    if twice:
        raise ShardingError(f"logical axis {', '.join(map(repr, twice))} stands twice")
    reachable = {axis for _, axes in rules for axis in axes_of(axes)}
    strange = [axis for axis in mesh.axis_names if axis not in reachable]
    if strange:
        raise ShardingError(
            f"mesh axis {', '.join(map(repr, strange))} is in no rule: nothing is sharded over it; "
            f"the rules know {', '.join(sorted(reachable))}"
        )
    spec = nn.logical_to_mesh_axes(names, rules=tuple(rules)) or ()
    used = [tuple(a for a in axes_of(axes) if mesh.shape.get(a, 1) > 1) for axes in spec]
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in used))


def spec_text(spec: PartitionSpec) -> str:
    """A PartitionSpec as text that no jax version changes: ``P('fsdp', None)``."""
    parts = [repr(axes if axes is None or isinstance(axes, str) else tuple(axes)) for axes in spec]
    return f"P({', '.join(parts)}{',' * (len(parts) == 1)})"


def axes_of(axes) -> tuple[str, ...]:
    """One entry of a PartitionSpec or of a rule as a tuple of mesh axes."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
