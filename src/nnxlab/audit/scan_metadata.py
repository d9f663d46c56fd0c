"""Whether a model's sharding metadata fits its values, and whether a forward leaves it alone."""

from collections.abc import Callable

from flax import nnx

from nnxlab import compat
from nnxlab.model.scan_axis import POSITION_KEY, dotted


class MetadataError(ValueError):
    """Sharding metadata contradicts a value, or changed while nothing should change it."""


def check(model: nnx.Module) -> None:
    """Raises if a variable's names do not fit its rank or its recorded scan axis.

    A name too few is the dangerous one: where sizes divide, the names shift by one dimension and
    the layer axis is sharded in silence (flax #5112).

    Raises:
      MetadataError: Names path, names and rank of every variable concerned.
    """
    faults = []
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        names = compat.logical_axes(variable)
        fault = "" if names is None else _fault(variable, names)
        if fault:
            faults.append(f"  {dotted(path)}: names {names}, rank {len(variable.shape)}: {fault}")
    if faults:
        raise MetadataError("sharding metadata does not fit:\n" + "\n".join(faults))


def check_forward(model: nnx.Module, forward: Callable[[nnx.Module], object]) -> None:
    """Raises if ``forward(model)`` changes the logical axis names of a parameter.

    The forward is only traced, on a copy: any size, no array is allocated.

    Raises:
      MetadataError: Names every parameter with its names before and after.
    """

    def run(model):
        forward(model)
        return model

    before, after = _names(model), _names(compat.eval_shape(run, nnx.clone(model)))
    moved = [f"  {p}: {before[p]} -> {after.get(p)}" for p in before if before[p] != after.get(p)]
    if moved:
        raise MetadataError(
            f"one forward renamed the axes of {len(moved)} of {len(before)} parameters:\n"
            + "\n".join(moved)
        )


def _names(model: nnx.Module) -> dict[str, tuple | None]:
    params = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {dotted(path): compat.logical_axes(variable) for path, variable in params}


def _fault(variable: nnx.Variable, names: tuple) -> str:
    stored, rank = variable.get_metadata(), len(variable.shape)
    if len(names) != rank:
        return f"{len(names)} names for rank {rank}"
    name, position = stored.get(nnx.PARTITION_NAME), stored.get(POSITION_KEY)
    if name is None or position is None:
        return ""
    if names.count(name) != 1:
        return f"scan axis {name!r} stands {names.count(name)} times"
    if names.index(name) != position:
        return f"scan axis {name!r} at {names.index(name)}, recorded at {position}"
    return ""
