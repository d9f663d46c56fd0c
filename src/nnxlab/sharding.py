"""What each device holds of a model: a table from logical axis names, and checks on it."""

import math
from collections.abc import Iterator

import jax.numpy as jnp
import pandas as pd
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab import compat
from nnxlab.model import nnx_model, port
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.scan_axis import dotted
from nnxlab.rules import MAXTEXT_RULES, Rules, ShardingError, axes_of, resolve, spec_text

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


def times_even_share(table: pd.DataFrame, mesh_size: int) -> float:
    """How many times its even share of all bytes each device holds; 1.0 if all is sharded."""
    return float(table["bytes_per_device"].sum() * mesh_size / table["bytes"].sum())


def check_even(table: pd.DataFrame, mesh_size: int, limit: float = 1.25, largest: int = 5) -> None:
    """Raises if each device holds more than ``limit`` times its even share of the parameters.

    Stricter than ``check_sharded`` where it matters: on many devices a small share of replicated
    elements is most of what each device holds.

    Raises:
      ShardingError: With the factor and the ``largest`` offenders by bytes held beyond one copy.
    """
    factor = times_even_share(table, mesh_size)
    if factor <= limit:
        return
    worst = table.nlargest(largest, "replicated_bytes")
    rows = [f"  {r.path} {r.shape}, names {r.names}, {r.spec}" for r in worst.itertuples()]
    raise ShardingError(
        f"each of {mesh_size} devices holds {factor:.1f} times its even share of the parameters, "
        f"more than {limit:g} times. The largest excess:\n" + "\n".join(rows)
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
        parts = math.prod(mesh.shape[axis] for axis in axes_of(axes))
        if size % parts:
            raise ShardingError(f"size {size} is not divisible by {parts} ({axes})")
        shard.append(size // parts)
    return tuple(shard)
