"""Logical axis names to PartitionSpecs: MaxText's rules, a user's own, and how they are applied."""

import json
from collections.abc import Sequence
from pathlib import Path

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


# Mesh axes that split the batch: MaxText 0.2.4's rule for activation_batch.
BATCH_AXES = ("data", "fsdp", "fsdp_transpose", "expert")


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
    reachable = {axis for _, axes in rules for axis in axes_of(axes)} | set(BATCH_AXES)
    strange = [axis for axis in mesh.axis_names if axis not in reachable]
    if strange:
        raise ShardingError(
            f"mesh axis {', '.join(map(repr, strange))} is in no rule: nothing is sharded over it; "
            f"the rules know {', '.join(sorted(reachable))}"
        )
    spec = nn.logical_to_mesh_axes(names, rules=tuple(rules)) or ()
    used = [tuple(a for a in axes_of(axes) if mesh.shape.get(a, 1) > 1) for axes in spec]
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in used))


def read(path: Path | str) -> Rules:
    """Rules from a file, in MaxText's form: pairs of a logical axis and its mesh axes.

    A JSON file holds the list of pairs, or an object with it under ``logical_axis_rules``::

        [["embed", ["fsdp", "expert"]], ["mlp", "tensor"], ["norm", []]]

    A ``.yml`` or ``.yaml`` file, which needs PyYAML, has the same list; MaxText's own
    ``configs/base.yml`` will do. An empty list of axes says "replicated"; a name may stand twice,
    as in ``MAXTEXT_RULES``.

    Raises:
      ValueError: Every fault of the file at once, with its place.
      OSError: The file cannot be read.
    """
    path = Path(path)
    found = _parsed(path)
    if isinstance(found, dict):
        found = found.get("logical_axis_rules")
    if not isinstance(found, list) or not found:
        raise ValueError(
            f"rules {path}: no list of rules, neither at the top nor under logical_axis_rules; "
            f"write {_EXAMPLE}"
        )
    faults = [
        f"  rule {number}, {rule!r}: {fault}"
        for number, rule in enumerate(found, 1)
        if (fault := _fault(rule))
    ]
    if faults:
        raise ValueError(f"rules {path}: not as in {_EXAMPLE}:\n" + "\n".join(faults))
    return tuple((name, axes if isinstance(axes, str) else tuple(axes)) for name, axes in found)


def spec_text(spec: PartitionSpec) -> str:
    """A PartitionSpec as text that no jax version changes: ``P('fsdp', None)``."""
    parts = [repr(axes if axes is None or isinstance(axes, str) else tuple(axes)) for axes in spec]
    return f"P({', '.join(parts)}{',' * (len(parts) == 1)})"


def axes_of(axes) -> tuple[str, ...]:
    """One entry of a PartitionSpec or of a rule as a tuple of mesh axes."""
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


_EXAMPLE = '[["embed", ["fsdp", "expert"]], ["mlp", "tensor"], ["norm", []]]'


def _parsed(path: Path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"rules {path}: not JSON: {error}") from error
    if path.suffix not in (".yml", ".yaml"):
        raise ValueError(f"rules {path}: the name ends in none of .json, .yml, .yaml")
    try:
        import yaml
    except ImportError as error:
        raise ValueError(
            f"rules {path}: reading YAML needs PyYAML (pip install pyyaml); JSON needs nothing"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"rules {path}: not YAML: {error}") from error


def _fault(rule) -> str | None:
    if not isinstance(rule, list) or len(rule) != 2:
        return "not a pair [name, axes]"
    name, axes = rule
    if not isinstance(name, str) or not name:
        return "the name is no text"
    axes = [axes] if isinstance(axes, str) else axes
    if not isinstance(axes, list) or not all(isinstance(axis, str) and axis for axis in axes):
        return "the axes are neither a mesh axis nor a list of them"
    if len(set(axes)) < len(axes):
        return "a mesh axis stands twice"
    return None
