"""From logical axis names to PartitionSpecs to a table of what each device holds."""

import math
from collections.abc import Iterator, Sequence

import flax.linen as nn
import jax.numpy as jnp
import pandas as pd
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab import compat
from nnxlab.compat import Names
from nnxlab.model import nnx_model, port
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.scan_axis import dotted

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


_GROUPS = {
    "norms": "norm",
    "MTP projection": "projection",
    "attention": "self_attention",
    "shared experts": "shared_experts",
    "router": ".gate.",
    "experts": "MoeBlock_0",
    "dense MLP": ".mlp.",
    "output head": "logits_dense",
    "embedding": "token_embedder",
}


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
    reachable = {axis for _, axes in rules for axis in _tuple(axes)}
    strange = [axis for axis in mesh.axis_names if axis not in reachable]
    if strange:
        raise ShardingError(
            f"mesh axis {', '.join(map(repr, strange))} is in no rule: nothing is sharded over it; "
            f"the rules know {', '.join(sorted(reachable))}"
        )
    spec = nn.logical_to_mesh_axes(names, rules=tuple(rules)) or ()
    used = [tuple(a for a in _tuple(axes) if mesh.shape.get(a, 1) > 1) for axes in spec]
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in used))


def spec_text(spec: PartitionSpec) -> str:
    """A PartitionSpec as text that no jax version changes: ``P('fsdp', None)``."""
    parts = [repr(axes if axes is None or isinstance(axes, str) else tuple(axes)) for axes in spec]
    return f"P({', '.join(parts)}{',' * (len(parts) == 1)})"


def variables(model: nnx.Module | nnx.State) -> Iterator[tuple[str, nnx.Variable]]:
    """Dotted path and variable of each parameter, abstract or not, sorted by path."""
    state = nnx.state(model, nnx.Param) if isinstance(model, nnx.Module) else model
    yield from sorted((dotted(path), v) for path, v in nnx.to_flat_state(state))


def group_of(path: str) -> str:
    """The part of the model that a parameter belongs to, for sums and pictures."""
    for group, mark in _GROUPS.items():
        if mark in path:
            return group
    return "other"


def count_by_group(config: DeepSeekConfig) -> dict[str, int]:
    """Number of parameters in each group of a model of ``config``, computed abstractly."""
    counts: dict[str, int] = {}
    for path, shape in port.shapes(nnx_model.abstract(config)).items():
        counts[group_of(path)] = counts.get(group_of(path), 0) + math.prod(shape)
    return counts


def table(model, mesh, rules: Rules = MAXTEXT_RULES) -> pd.DataFrame:
    """One row a parameter: what it declares and what each device therefore holds.

    Columns: path, shape, names, spec, shard (shape on one device), elements, bytes (all of it),
    bytes_per_device, replicated_bytes (held beyond one copy, over all devices).

    Raises:
      ShardingError: Collects every parameter whose names, rank or sizes do not fit the mesh.
    """
    found = dict(variables(model))
    shapes = {path: tuple(v.shape) for path, v in found.items()}
    names = {path: compat.logical_axes(v) for path, v in found.items()}
    return rows(shapes, names, mesh, rules, {path: v.dtype for path, v in found.items()})


def rows(shapes, names, mesh, rules: Rules = MAXTEXT_RULES, dtypes=None) -> pd.DataFrame:
    """The same table from shapes, names and dtypes (float32 if not given) by dotted path.

    Raises:
      ShardingError: As ``table``.
    """
    made, faults = [], []
    for path, shape in shapes.items():
        dtype = dtypes[path] if dtypes else jnp.float32
        try:
            made.append(_row(path, shape, dtype, names[path], mesh, rules))
        except ShardingError as error:
            faults.append(f"  {path} {shape}, names {names[path]}: {error}")
    if faults:
        raise ShardingError("cannot shard these parameters:\n" + "\n".join(faults))
    return pd.DataFrame(made)


def specs(model, mesh, rules: Rules = MAXTEXT_RULES) -> dict[str, NamedSharding]:
    """The NamedSharding of each parameter, by dotted path."""
    return {
        path: NamedSharding(mesh, resolve(compat.logical_axes(v) or (), mesh, rules))
        for path, v in variables(model)
    }


def unsharded(table: pd.DataFrame) -> dict[str, float]:
    """How much of a model is held whole by every device.

    Returns:
      tensors, elements, total_elements, share (of elements, in [0, 1]) and maxtext_share:
      MaxText's check divides unsharded *elements* by total *bytes*, so with float32 weights it
      reads a quarter of the share (0.2.4, ``assert_params_sufficiently_sharded``).
    """
    whole = table[table["shard"] == table["shape"]]
    elements, total = int(whole["elements"].sum()), int(table["elements"].sum())
    return {
        "tensors": len(whole),
        "elements": elements,
        "total_elements": total,
        "share": elements / total,
        "maxtext_share": elements / int(table["bytes"].sum()),
    }


def check_sharded(table: pd.DataFrame, tolerance: float = 0.02, largest: int = 5) -> None:
    """Raises if more than ``tolerance`` of all elements are on every device.

    Raises:
      ShardingError: With the share and the ``largest`` offenders.
    """
    found = unsharded(table)
    if found["share"] <= tolerance:
        return
    whole = table[table["shard"] == table["shape"]].nlargest(largest, "elements")
    rows = [f"  {r.path} {r.shape}, names {r.names}, {r.spec}" for r in whole.itertuples()]
    raise ShardingError(
        f"{found['share']:.2%} of the parameters are replicated, more than {tolerance:.2%}: "
        f"{found['elements']:,} of {found['total_elements']:,} elements in {found['tensors']} "
        f"tensors. The largest:\n" + "\n".join(rows)
    )


def _row(path, shape, dtype, names, mesh, rules) -> dict:
    if names is None:
        raise ShardingError("declares no logical axis names")
    if len(names) != len(shape):
        raise ShardingError(f"{len(names)} names for rank {len(shape)}")
    spec = resolve(names, mesh, rules)
    shard = _shard_shape(shape, spec, mesh)
    width, total = jnp.dtype(dtype).itemsize, math.prod(shape)
    held = math.prod(shard) * width
    return {
        "path": path,
        "shape": shape,
        "names": names,
        "spec": spec_text(spec),
        "shard": shard,
        "elements": total,
        "bytes": total * width,
        "bytes_per_device": held,
        "replicated_bytes": held * mesh.size - total * width,
    }


def _shard_shape(shape, spec: PartitionSpec, mesh) -> tuple[int, ...]:
    shard = []
    for size, axes in zip(shape, spec, strict=True):
        parts = math.prod(mesh.shape[axis] for axis in _tuple(axes))
        if size % parts:
            raise ShardingError(f"size {size} is not divisible by {parts} ({axes})")
        shard.append(size // parts)
    return tuple(shard)


def _tuple(axes) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
