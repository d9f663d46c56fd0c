"""``nnxlab compile``: a training step through the compiler of chips that need not be there."""

import argparse
import dataclasses
import time
from pathlib import Path

from nnxlab.runs import options

HELP = "compile the training step for a TPU slice, without one; bytes a chip, collectives"
EXAMPLE = "nnxlab compile --topology v6e:2x4 --config deepseek3-tiny --broken scan-axis"
_BYTES = ("parameter", "argument", "output", "alias", "temp", "code", "peak")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``nnxlab compile``."""
    add = parser.add_argument
    add("--topology", default="v6e:2x4", help="as v5p:4x4x4, cpu:8 or local (default %(default)s)")
    add("--cell", default="nnx_mtp", help="as of nnxlab train (default %(default)s)")
    add("--broken", metavar="BUG[,BUG]", help="set the step with these bugs beside the sound one")
    add("--config", default="deepseek3-tiny", metavar="NAME", help="default %(default)s")
    add("--mesh", help="as fsdp=4,tensor=2 (default: fsdp as far as it divides, then data)")
    add("--batch", type=options.count, metavar="ROWS", help="default: one a chip, at least 8")
    add("--length", type=options.count, default=128, metavar="TOKENS", help="default %(default)s")
    add("--dtype", default="float32", choices=options.DTYPES, help="of activations")
    add("--remat", default="full", choices=["none", "full", "minimal"], help="of the layers")
    add("--quantization", default="fp8_full", help="fp8_full or int8, for the qwix cells")
    add("--forward", action="store_true", help="the forward pass alone")
    add("--matrix", action="store_true", help="all programs of notebook 5, as JSON: ten minutes")
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compiles, and prints a table or JSON; a step that does not fit is a result too.

    Raises:
      ValueError: Bad input.
      ImportError: The TPU's compiler is not installed.
    """
    from nnxlab import printing
    from nnxlab.scale import program

    start = time.monotonic()

    def say(text: str) -> None:
        printing.progress(text, start)

    if arguments.matrix:
        reports = [program.report(asked, say) for asked in program.MATRIX]
        whole = {"made_on": program.made_on(), "reports": reports}
        printing.report(whole, arguments.json or Path("-"))
        return 0
    bugs = tuple(bug for bug in (arguments.broken or "").split(",") if bug)
    taken = {f.name for f in dataclasses.fields(program.Program)} - {"broken"}
    asked = program.Program(broken=bugs, **{name: getattr(arguments, name) for name in taken})
    report = program.report(asked, say)
    if not (arguments.json and printing.report(report, arguments.json)):
        _print(report)
    return 0


def _print(report: dict) -> None:
    from nnxlab import printing

    mesh = ",".join(f"{axis}={size}" for axis, size in report["mesh"].items())
    rows, length = report["batch"]
    printing.line(
        f"{report['config']} {report['cell']}, {report['program']}, on {report['topology']} "
        f"({mesh}), {rows} rows of {length} tokens; of one chip, a loop's body "
        "counted once:"
    )
    printing.table(table(report))


def table(report: dict):
    """The figures of a report, a row each, ``fixed`` and ``broken`` side by side."""
    import pandas as pd

    found = {name: report[name] for name in ("fixed", "broken") if name in report}
    return pd.DataFrame({name: _column(values) for name, values in found.items()}).reset_index(
        names=""
    )


def _column(values: dict) -> dict[str, str]:
    if "error" in values:
        held = values["parameter_bytes_per_chip"] / 2**20
        return {"parameter MiB": f"{held:,.1f}", "error": values["error"]}
    column = {}
    for part in _BYTES:
        key = "parameter_bytes_per_chip" if part == "parameter" else f"{part}_bytes"
        column[f"{part} MiB"] = f"{values[key] / 2**20:,.1f}"
    if values["hbm_share"] is not None:
        column["share of HBM"] = f"{values['hbm_share']:.2%}"
    for kind, found in values["collectives"].items():
        column[kind] = f"{found['count']} ({found['bytes'] / 2**20:,.1f} MiB)"
    column["GFLOP"] = f"{values['flops'] / 1e9:,.2f}"
    column["compile seconds"] = f"{values['compile_seconds']:.1f}"
    return column
