"""A training step compiled ahead of time, and what its compiler says about each chip."""

import math
import time

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from nnxlab import chips, devices, sharding
from nnxlab.rules import ShardingError
from nnxlab.runs.cells import Cell
from nnxlab.runs.step import Step, plan
from nnxlab.scale import collectives

STEPS = 20  # of the schedule, which the program does not depend on but in a constant


def mesh(topology: str, axes: dict[str, int] | str | None, cell: Cell) -> Mesh:
    """The mesh of a topology by name, ``local`` for the TPU chips of this host.

    Args:
      topology: As ``v6e:2x4``, ``cpu:8`` or ``local``.
      axes: Axis sizes (default: as many chips under fsdp as the weights divide by, the others
        under data).
      cell: Whose weights.

    Raises:
      TooFewDevicesError: ``local`` on a host without TPU chips.
      ImportError, ValueError, RuntimeError: As ``devices.tpu_topology``.
    """
    if topology == "local":
        count = _local_chips()
        return devices.mesh(axes or default_axes(cell, count), platform="tpu")
    _, shape = chips.parse_topology(topology)
    return devices.tpu_topology(topology, axes or default_axes(cell, math.prod(shape)))


def default_axes(cell: Cell, count: int) -> dict[str, int]:
    """``count`` chips: the most under fsdp that every weight of ``cell`` divides by."""
    for fsdp in range(count, 0, -1):
        if count % fsdp:
            continue
        axes = {"fsdp": fsdp} if fsdp == count else {"data": count // fsdp, "fsdp": fsdp}
        kinds = (AxisType.Auto,) * len(axes)
        try:
            abstract = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
            sharding.rows(cell.shapes, cell.names, abstract)
        except ShardingError:
            continue
        return axes
    raise ShardingError("the weights do not fit any mesh")  # fsdp=1 always fits


def compiled(
    step: Step, rows: int, length: int, hbm_bytes: int | None = None, *, forward: bool = False
) -> dict:
    """Compiles ``step`` for a batch of [rows, length]; figures are of one chip.

    Args:
      step: What to compile, and for which chips.
      rows: Rows of the whole batch.
      length: Tokens a row.
      hbm_bytes: The chip's memory, for ``hbm_share``.
      forward: Leave out the backward pass and the update.

    Returns:
      ``report`` of the program, or ``parameter_bytes_per_chip`` and ``error``: the first line of
      the compiler's message, where it refuses for want of memory.
    """
    head = {"parameter_bytes_per_chip": parameter_bytes(step)}
    lowered, start = step.lower(rows, length, forward=forward), time.monotonic()
    try:
        with devices.quiet():
            done = lowered.compile()
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return head | {"error": str(error).strip().splitlines()[0]}
    return head | report(done, hbm_bytes) | {"compile_seconds": time.monotonic() - start}


def report(done: jax.stages.Compiled, hbm_bytes: int | None = None) -> dict:
    """What the compiler says of a program: bytes by kind, collectives, flops; of one chip.

    Collectives, flops and bytes accessed count the body of a loop once, however often it runs: 58
    layers in one scan count as one. ``peak_bytes`` is HBM; the compiler's own
    ``peak_memory_in_bytes`` has the on-chip memory (VMEM) in it too.
    """
    memory, cost = done.memory_analysis(), done.cost_analysis()
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "peak_bytes": peak,
        "hbm_share": peak / hbm_bytes if hbm_bytes else None,
        "collectives": collectives.by_kind(done.as_text()),
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
    }


def parameter_bytes(step: Step) -> int:
    """Bytes of the weights that one chip holds."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in step.state["params"].values()
    )


def steps(cell: Cell, broken: Cell | None, mesh: Mesh, rows: int) -> dict[str, Step]:
    """The step of ``cell`` under ``fixed`` and, if given, that of ``broken`` beside it.

    The broken one is sharded by what its logical axes are after a forward: bug 3's mark.
    """
    made = {"fixed": plan(cell, mesh, steps=STEPS, batch=rows)}
    if broken is not None:
        made["broken"] = plan(broken, mesh, steps=STEPS, batch=rows, names=broken.names_after)
    return made


def _local_chips() -> int:
    if not devices.has_tpu():
        raise devices.TooFewDevicesError(
            "topology local: this host has no TPU chips; name a topology, as v6e:2x4, or cpu:8"
        )
    return len(jax.devices("tpu"))
