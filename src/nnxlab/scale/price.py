"""What bug 3 costs on each chip, for any mesh, without any array.

Compared are a training state sharded by the names that the weights declare and one sharded by the
names after a forward, which a run gets that quantizes in its model's constructor.

Counted are parameters, gradients and AdamW's two moments, all sharded alike and all of one dtype:
MaxText's ``weight_dtype`` (float32 by default), which ``mu_dtype`` inherits and optax gives ``nu``.
Activations, the batch and the optimizer's counters are not counted.
"""

import dataclasses
import math

import jax.numpy as jnp
import pandas as pd
from jax.sharding import AbstractMesh, AxisType

from nnxlab import sharding
from nnxlab.cases import scan_axis
from nnxlab.compat import Names, logical_axes
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.scan_axis import RoundTrip
from nnxlab.rules import MAXTEXT_RULES, Rules, ShardingError, resolve

KINDS = {"parameter": 1, "gradient": 1, "optimizer": 2}  # copies of a weight's size that train it
DTYPES = ("float32", "bfloat16")
ROUTING_BIAS = "gate.bias"


@dataclasses.dataclass(frozen=True)
class Weights:
    """Every weight of a model, abstractly, all by dotted path.

    Attributes:
      shapes: Of the whole arrays.
      declared: Logical axes as the constructor declares them.
      after: The same after one forward.
    """

    shapes: dict[str, tuple[int, ...]]
    declared: dict[str, Names]
    after: dict[str, Names]

    @property
    def count(self) -> int:
        """Number of parameters."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def count_without_routing_bias(self) -> int:
        """The same without the routing biases, which no gradient trains in DeepSeek-V3."""
        return sum(math.prod(s) for p, s in self.shapes.items() if not p.endswith(ROUTING_BIAS))


def weights(config: DeepSeekConfig, trip: RoundTrip = scan_axis.BROKEN) -> Weights:
    """The weights of ``config`` before and after one forward with ``trip``; no array is made."""
    model = scan_axis.model_after(config, trip, forwards=0)
    before, after = (
        dict(sharding.variables(found)) for found in (model, scan_axis.after_forward(model))
    )
    return Weights(
        shapes={path: tuple(v.shape) for path, v in before.items()},
        declared={path: logical_axes(v) for path, v in before.items()},
        after={path: logical_axes(v) for path, v in after.items()},
    )


def abstract_mesh(axes: dict[str, int]) -> AbstractMesh:
    """A mesh of ``axes`` without devices."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def price(
    weights: Weights,
    axes: dict[str, int],
    *,
    dtype: str = "float32",
    rules: Rules = MAXTEXT_RULES,
) -> pd.DataFrame:
    """What each chip holds of every weight, as declared and after the forward.

    Args:
      weights: Of any config.
      axes: Mesh axis sizes by name.
      dtype: Of the weights, ``float32`` or ``bfloat16``.
      rules: What the logical axes stand for.

    Returns:
      One row a weight: path, group, elements, spec, spec_after, and fixed and broken: bytes a
      chip of the parameter alone.

    Raises:
      ShardingError: Names each weight that the mesh or the rules do not fit, and says whether
        that is so as declared or after the forward only.
      ValueError: Unknown dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"weight dtype {dtype!r} is none of {', '.join(DTYPES)}")
    dtypes = dict.fromkeys(weights.shapes, jnp.dtype(dtype))
    mesh = abstract_mesh(axes)
    resolve((), mesh, rules)  # a mesh axis that no rule mentions is said once, not by each weight
    declared = sharding.rows(weights.shapes, weights.declared, mesh, rules, dtypes)
    try:
        after = sharding.rows(weights.shapes, weights.after, mesh, rules, dtypes)
    except ShardingError as error:
        raise ShardingError(f"as declared all fits; after one broken forward: {error}") from error
    return pd.DataFrame(
        {
            "path": declared["path"],
            "group": declared["path"].map(sharding.group_of),
            "elements": declared["elements"],
            "spec": declared["spec"],
            "spec_after": after["spec"],
            "fixed": declared["bytes_per_device"],
            "broken": after["bytes_per_device"],
        }
    )


def by_group(table: pd.DataFrame) -> pd.DataFrame:
    """``price``'s table summed by group, first the one that gains most, then by size.

    Columns: group, elements, fixed and broken (parameter bytes a chip), factor.
    """
    summed = table.groupby("group", sort=True)[["elements", "fixed", "broken"]].sum().reset_index()
    summed["gain"] = summed["broken"] - summed["fixed"]
    summed["factor"] = summed["broken"] / summed["fixed"]
    order = summed.sort_values(["gain", "fixed"], ascending=False, kind="stable")
    return order.drop(columns="gain").reset_index(drop=True)


def bytes_per_chip(table: pd.DataFrame, state: str) -> dict[str, int]:
    """Bytes a chip of each of ``KINDS`` and their total.

    Args:
      table: ``price``'s, or some of its rows, or ``by_group``'s.
      state: ``"fixed"`` or ``"broken"``.
    """
    held = int(table[state].sum())
    kinds = {f"{kind}_bytes_per_chip": held * copies for kind, copies in KINDS.items()}
    return kinds | {"total_bytes_per_chip": sum(kinds.values())}
