"""The scan axis in sharding metadata: taking its name out for one layer, putting it back.

A stack of layers holds each weight once, with a layer axis; ``jax.lax.scan`` cuts that axis off
the value and not out of the metadata. The algebra here does the metadata's half:
``add(remove(names)) == names`` for every consistent variable, and an error, never a repair, for
an inconsistent one. Which name and which position: each variable's own record.
"""

import dataclasses
from collections.abc import Callable

from flax import nnx

from nnxlab import compat
from nnxlab.compat import Names

POSITION_KEY = "param_scan_axis"


@dataclasses.dataclass(frozen=True)
class ScanAxis:
    """The layer axis of one stacked variable: its logical name and its position."""

    name: str
    position: int


class ScanAxisError(ValueError):
    """Sharding metadata contradicts the value it describes or its own record of the scan axis."""


def position_for(param_scan_axis: int, layer_rank: int) -> int:
    """Where the layer axis goes in a weight of ``layer_rank`` dimensions: within its bounds."""
    if param_scan_axis < 0:
        param_scan_axis += layer_rank + 1
    return min(max(param_scan_axis, 0), layer_rank)


def recorded_axis(variable: nnx.Variable) -> ScanAxis:
    """The scan axis that ``variable`` records under PARTITION_NAME and ``param_scan_axis``.

    Raises:
      ScanAxisError: One of the two is not recorded.
    """
    stored = variable.get_metadata()
    missing = [key for key in (nnx.PARTITION_NAME, POSITION_KEY) if stored.get(key) is None]
    if missing:
        raise ScanAxisError(f"records no {' and no '.join(missing)}")
    return ScanAxis(stored[nnx.PARTITION_NAME], stored[POSITION_KEY])


def remove(names: Names, axis: ScanAxis, layer_rank: int) -> Names:
    """Names of one layer's variable from those of the stack.

    Args:
      names: One name for each of the ``layer_rank + 1`` dimensions of the stacked value.
      axis: The scan axis that must be among them.
      layer_rank: Rank of one layer's value.

    Raises:
      ScanAxisError: Too many or too few names, or the axis missing, doubled or misplaced.
    """
    if len(names) != layer_rank + 1:
        raise ScanAxisError(f"{len(names)} names for a stacked value of rank {layer_rank + 1}")
    if names.count(axis.name) != 1:
        raise ScanAxisError(f"{axis.name!r} stands {names.count(axis.name)} times, not once")
    if names.index(axis.name) != axis.position:
        raise ScanAxisError(f"{axis.name!r} at {names.index(axis.name)}, not at {axis.position}")
    return names[: axis.position] + names[axis.position + 1 :]


def add(names: Names, axis: ScanAxis, layer_rank: int) -> Names:
    """Names of the stacked variable from those of one layer: the inverse of ``remove``.

    Raises:
      ScanAxisError: Too many or too few names, the axis already there, or no such position.
    """
    if len(names) != layer_rank:
        raise ScanAxisError(f"{len(names)} names for a layer's value of rank {layer_rank}")
    if axis.name in names:
        raise ScanAxisError(f"{axis.name!r} is already there")
    if not 0 <= axis.position <= layer_rank:
        raise ScanAxisError(f"position {axis.position} is outside a value of rank {layer_rank + 1}")
    return (*names[: axis.position], axis.name, *names[axis.position :])


@dataclasses.dataclass(frozen=True)
class RoundTrip:
    """How a scan treats metadata: which axis a variable has, and the two list operations.

    The model takes one as an argument, so that a fault can be put in from outside.
    """

    axis_of: Callable[[nnx.Variable], ScanAxis]
    remove: Callable[[Names, ScanAxis, int], Names]
    add: Callable[[Names, ScanAxis, int], Names]


RECORDED = RoundTrip(axis_of=recorded_axis, remove=remove, add=add)


def to_layer(stacked: nnx.State, trip: RoundTrip, where: str = "") -> nnx.State:
    """``stacked`` with the metadata of one layer; values keep their layer axis.

    Args:
      stacked: The variables of a stack.
      trip: What is done to their names.
      where: Path of the stack in its model, for the error.

    Raises:
      ScanAxisError: Naming path, names and rank of every inconsistent variable at once.
    """
    return _transform(stacked, trip, trip.remove, where)


def to_stack(layer: nnx.State, trip: RoundTrip, where: str = "") -> nnx.State:
    """The inverse of ``to_layer``: again the metadata of the stack.

    Raises:
      ScanAxisError: As ``to_layer``.
    """
    return _transform(layer, trip, trip.add, where)


def dotted(path: tuple) -> str:
    """A variable's path as one word: ``('decoder', 'norm')`` -> ``decoder.norm``."""
    return ".".join(map(str, path))


def _transform(state: nnx.State, trip: RoundTrip, operation, where: str) -> nnx.State:
    faults, flat = [], dict(nnx.to_flat_state(state))
    for path, variable in flat.items():
        names, rank = compat.logical_axes(variable), len(variable.shape)
        if names is None:
            continue
        try:
            names = operation(names, trip.axis_of(variable), rank - 1)
            flat[path] = compat.with_logical_axes(variable, names)
        except ScanAxisError as error:
            full = dotted((where, *path) if where else path)
            faults.append(f"  {full}: names {names}, rank {rank}: {error}")
    if faults:
        raise ScanAxisError(
            "sharding metadata and scan axis do not agree:\n" + "\n".join(faults) + "\n"
            "Each stacked variable needs one name a dimension, its scan axis recorded under "
            f"{nnx.PARTITION_NAME!r} and its position under {POSITION_KEY!r}."
        )
    return nnx.from_flat_state(flat)
