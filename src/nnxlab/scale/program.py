"""One program to compile, in words; and the programs whose figures are stored."""

import dataclasses
from collections.abc import Callable
from importlib.metadata import version

from nnxlab import chips
from nnxlab.cases import scan_axis
from nnxlab.model.config import config_named
from nnxlab.runs import cells
from nnxlab.scale import aot

TOPOLOGIES = ("v5e:2x4", "v6e:2x4", "v6e:16x16", "v5p:4x4x4", "v5p:8x8x8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What to compile: a step of ``config`` for ``topology``, and beside it one with bugs.

    Attributes:
      topology: As ``v6e:2x4``, ``cpu:8`` or ``local``.
      config: A name of ``model.config.CONFIGS``.
      cell: Of ``cells.CELLS``.
      broken: The bugs of the step beside it; none for no such step.
      mesh: As ``fsdp=4,tensor=2`` (default: ``aot.default_axes``).
      batch: Rows of the whole batch (default: one a chip, at least 8).
      length: Tokens a row.
      dtype: Of the activations.
      remat: A key of ``model.config.REMAT_POLICIES``.
      quantization: A key of ``quantization.PROVIDERS``.
      forward: Leave out the backward pass and the update.
    """

    topology: str
    config: str = "deepseek3-tiny"
    cell: str = "nnx_mtp"
    broken: tuple[str, ...] = (scan_axis.NAME,)
    mesh: str | None = None
    batch: int | None = None
    length: int = 128
    dtype: str = "float32"
    remat: str = "full"
    quantization: str = "fp8_full"
    forward: bool = False


_LARGE = {"config": "deepseek3-671b", "dtype": "bfloat16", "topology": "v5p:8x8x8"}
MATRIX = (
    *(
        Program(topology=topology, cell=cell)
        for topology in TOPOLOGIES
        for cell in ("nnx_mtp", "nnx_mtp_qwix")
    ),
    Program(**_LARGE, forward=True),
    Program(**_LARGE, forward=True, length=4096),
    Program(**_LARGE),
)


def report(program: Program, say: Callable[[str], None] = lambda _: None) -> dict:
    """Compiles ``program``; figures are of one chip.

    Args:
      program: What to compile.
      say: Told of each compilation when it starts and ends.

    Returns:
      topology, mesh, config, cell, program, batch, fixed and, with bugs, broken: see
      ``aot.compiled``.

    Raises:
      ValueError: An unknown word, or sizes that do not divide.
      ImportError: The TPU's compiler is not installed.
    """
    sizes = config_named(program.config, dtype=program.dtype, remat_policy=program.remat)
    sound, *broken = (
        cells.build(program.cell, sizes, bugs, program.quantization)
        for bugs in ((), *([program.broken] if program.broken else []))
    )
    mesh = aot.mesh(program.topology, program.mesh, sound)
    rows = program.batch or max(8, mesh.size)
    local = program.topology == "local"
    hbm = None if local else chips.parse_topology(program.topology)[0].hbm_bytes
    what = "forward" if program.forward else "train step"
    found = {
        "topology": program.topology,
        "mesh": dict(mesh.shape),
        "config": program.config,
        "cell": program.cell,
        "program": what,
        "batch": [rows, program.length],
    }
    for name, step in aot.steps(sound, *(broken or [None]), mesh, rows).items():
        say(f"{program.config} {program.cell}, {what}, {program.topology}: compiling {name}")
        found[name] = aot.compiled(step, rows, program.length, hbm, forward=program.forward)
        say(f"    {found[name].get('error', 'compiled')}")
    return found


def made_on() -> str:
    """The versions that a compiled program depends on."""
    return ", ".join(f"{name} {version(name)}" for name in ("jax", "libtpu", "flax", "qwix"))
