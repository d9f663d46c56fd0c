"""The command line; each command beyond the first three is a module of its own."""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from nnxlab import printing

# Each has HELP, EXAMPLE, add_arguments and run, and importing it starts nothing.
MODULES = {
    "train": "nnxlab.runs.train",
    "matrix": "nnxlab.runs.matrix_command",
    "price": "nnxlab.scale.price_command",
    "compile": "nnxlab.scale.compile_command",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
      0 if everything holds, 1 if a claim or a tolerance does not, 2 for bad input, 130 on Ctrl-C.
    """
    arguments = _parser().parse_args(argv)
    arguments.command_line = sys.argv[1:] if argv is None else argv
    try:
        return arguments.command(arguments)
    except KeyboardInterrupt:
        printing.error("interrupted")
        return 130
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        printing.error(f"nnxlab {arguments.name}: {error}")
        return 2


def verify(arguments: argparse.Namespace) -> int:
    """Reproduces each bug, verifies each fix, prints the verdict table or JSON."""
    from nnxlab import verdict

    findings, start = [], time.monotonic()
    for finding in verdict.verify(arguments.case, arguments.config):
        findings.append(finding)
        printing.progress(f"{finding.case}: {finding.verdict}", start)
    if arguments.json:
        print(json.dumps(verdict.report(findings), indent=1))
    else:
        printing.table(verdict.table(findings))
    return 0 if verdict.all_hold(findings) else 1


def parity(arguments: argparse.Namespace) -> int:
    """Compares both implementations with a dump of MaxText's numbers."""
    from nnxlab import parity, reference

    compared = parity.compare(parity.read(arguments.dump or reference.SMALL_DUMP))
    worst = float(compared[["nnx", "linen"]].max(axis=None))
    if arguments.json:
        result = {
            "tolerance": arguments.tolerance,
            "worst": worst,
            "equal": worst <= arguments.tolerance,
        }
        print(json.dumps(result | {"rows": compared.to_dict("records")}, indent=1))
    else:
        shown = compared.assign(
            maxtext=compared["maxtext"].map("{:.6g}".format),
            nnx=compared["nnx"].map("{:.1e}".format),
            linen=compared["linen"].map("{:.1e}".format),
        )
        printing.table(shown)
        within = "within" if worst <= arguments.tolerance else "PAST"
        printing.line(f"worst relative difference {worst:.1e}: {within} {arguments.tolerance:.0e}")
    return 0 if worst <= arguments.tolerance else 1


def run(arguments: argparse.Namespace) -> int:
    """Executes the notebooks into a folder, then prints the verdict table."""
    from nnxlab import notebooks

    failures = []
    for path in notebooks.find(arguments.notebooks, arguments.only, scripts=arguments.store):
        start, out = time.monotonic(), path.parent if arguments.store else arguments.out
        try:
            with printing.ERR.status(path.stem) as status:
                for done, cells in notebooks.run(path, out, from_its_script=arguments.store):
                    status.update(f"{path.stem}: cell {done} of {cells}")
            printing.progress(f"{path.stem}: {cells} cells", start)
        except notebooks.NotebookError as error:
            printing.progress(f"{path.stem}: FAILED", start)
            failures.append(str(error))
    if failures:
        raise notebooks.NotebookError("\n".join(failures))
    if arguments.store or arguments.only:
        return 0
    return verify(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nnxlab",
        description="Three silent bugs of MaxText's NNX path: reproduced, explained and shut.",
        epilog="Exit codes: 0 all holds, 1 a claim does not hold, 2 bad input.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")

    one = commands.add_parser(
        "verify",
        help="reproduce each bug and verify each fix",
        epilog="example: nnxlab verify --case scan-axis --config tiny --json",
    )
    one.add_argument("--case", action="append", metavar="NAME", help=_CASES)
    one.set_defaults(command=verify)
    _add_config_and_json(one)

    one = commands.add_parser(
        "parity",
        help="compare both implementations with numbers read off MaxText",
        epilog="example: nnxlab parity my_dump.npz --json",
    )
    one.add_argument(
        "dump",
        type=Path,
        nargs="?",
        help="an npz, its resolved config beside it as json (default: the one shipped)",
    )
    one.add_argument("--tolerance", type=float, default=1e-4, help="relative (default %(default)g)")
    one.add_argument("--json", action="store_true", help="print JSON instead of a table")
    one.set_defaults(command=parity)

    for name, path in MODULES.items():
        module = importlib.import_module(path)
        one = commands.add_parser(name, help=module.HELP, epilog=f"example: {module.EXAMPLE}")
        module.add_arguments(one)
        one.set_defaults(command=module.run)

    one = commands.add_parser(
        "run",
        help="execute the notebooks, then verify",
        epilog="example: nnxlab run --only 3_scan_axis",
    )
    one.add_argument("--notebooks", type=Path, default=Path("notebooks"), metavar="DIR")
    one.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="results go here")
    one.add_argument(
        "--only", metavar="TEXT", default="", help="just the notebooks with TEXT in their name"
    )
    one.add_argument(
        "--store", action="store_true", help="store the outputs in the notebooks themselves"
    )
    one.set_defaults(command=run, case=None)
    _add_config_and_json(one)
    return parser


_CASES = "mtp-loss, qwix-targets or scan-axis; may be repeated (default: all)"


def _add_config_and_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", default="tiny", metavar="NAME", help="tiny (61 layers, default) or small"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
