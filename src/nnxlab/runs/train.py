"""``nnxlab train``: one cell, some steps, a progress bar, and every finished step on disk."""

import argparse
import math
from pathlib import Path

from nnxlab.runs import options

HELP = "train one cell of the PR's matrix, with or without its bugs"
EXAMPLE = "nnxlab train --cell nnx_mtp --broken mtp-loss --steps 20 --csv run.csv"


def run(arguments: argparse.Namespace) -> int:
    """Trains, and prints the last step or the whole record.

    Raises:
      ValueError: Bad input; before anything is compiled.
      ShardingError: Bug 3, where quantizing inside the constructor makes it fatal.
      ProcessError: One of several processes failed.
    """
    import jax

    from nnxlab.runs import processes

    if arguments.processes > 1 and not processes.is_child():
        _check_devices(arguments)
        return processes.spawn(
            arguments.command_line, arguments.processes, arguments.devices_per_process
        )
    if arguments.distributed:
        jax.distributed.initialize()
    processes.join()
    return _train(arguments)


def _check_devices(arguments: argparse.Namespace) -> None:
    from nnxlab import devices

    needed = math.prod(devices.parse_mesh(arguments.mesh).values())
    found = arguments.processes * arguments.devices_per_process
    if found != needed:
        raise ValueError(
            f"mesh {arguments.mesh} takes {needed} devices, and {arguments.processes} processes of "
            f"{arguments.devices_per_process} have {found}: every process must own its share; "
            "choose --processes, --devices-per-process and --mesh so that they agree"
        )


def _train(arguments: argparse.Namespace) -> int:
    import jax

    from nnxlab import devices, printing
    from nnxlab.runs import loop, setup
    from nnxlab.runs.record import Record

    broken = [bug for bug in (arguments.broken or "").split(",") if bug]
    made = setup.from_arguments(arguments)
    cell, batches = _cell(arguments, made, broken), made.batches()
    head = {
        "cell": arguments.cell,
        "broken": broken,
        "config": arguments.config,
        "mesh": devices.describe(made.mesh),
        "data": arguments.data,
    }
    first = jax.process_index() == 0
    prepared = made.prepare(cell)
    saves = _checkpoints(arguments, prepared, head, made.settings)
    done = int(prepared.state["step"])
    record = Record(head, *(_files(arguments) if first else ()), resumed_at=done)
    try:
        left = arguments.steps - done
        with printing.steps(left, first) as show, printing.interruptible() as check:
            for row in loop.rows(prepared, batches, arguments.steps):
                record.add(row)
                show(row)
                if saves:
                    saves.save()
                check()
            if saves:
                saves.save(last=True)
    finally:
        record.close()
        if saves:
            saves.close()
        if first:
            _print(record, str(arguments.json) == "-")
    return 0


def _cell(arguments: argparse.Namespace, made, broken: list[str]):
    try:
        return made.build(arguments.cell, broken)
    except TypeError as error:
        if "qwix-targets" not in broken:
            raise
        # The bug that was asked for: its message is the result, not a defect of this command.
        raise RuntimeError(f"TypeError: {str(error).splitlines()[0]}") from error


def _checkpoints(arguments: argparse.Namespace, prepared, head: dict, settings: dict):
    if arguments.checkpoints is None:
        if arguments.resume:
            raise ValueError("--resume needs --checkpoints DIR: the folder to go on from")
        return None
    from nnxlab.runs.checkpoint import CheckpointError, Checkpoints

    settings = settings | {name: head[name] for name in ("cell", "broken")}
    saves = Checkpoints(arguments.checkpoints, prepared, arguments.save_every, settings)
    if arguments.resume:
        if saves.restore() == arguments.steps:
            raise CheckpointError(f"{arguments.checkpoints} holds all {arguments.steps} steps")
    elif saves.latest() is not None:
        raise CheckpointError(
            f"{arguments.checkpoints} holds checkpoints up to step {saves.latest()}: pass --resume "
            "to go on from there, or name another folder"
        )
    return saves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``nnxlab train``."""
    add = parser.add_argument
    add("--cell", default="nnx_mtp", help="nnx_mtp, nnx_mtp_qwix, linen_mtp or linen_mtp_qwix")
    add("--broken", metavar="BUG[,BUG]", help="put in mtp-loss, qwix-targets, scan-axis")
    options.add(parser)
    add("--processes", type=options.count, default=1, metavar="N", help="started on this machine")
    add("--distributed", action="store_true", help="join the other hosts of a TPU pod slice")
    add(
        "--devices-per-process",
        type=options.count,
        default=4,
        metavar="N",
        help="default %(default)s",
    )
    add("--checkpoints", type=Path, metavar="DIR", help="save into DIR")
    add("--save-every", type=options.count, default=10, metavar="N", help="steps between two saves")
    add("--resume", action="store_true", help="go on from the last save in DIR")
    options.add_json(parser)
    add("--csv", type=options.output, metavar="FILE", help="write a line a step")


def _files(arguments: argparse.Namespace) -> tuple[Path | None, Path | None]:
    return None if str(arguments.json) == "-" else arguments.json, arguments.csv


def _print(record, as_json: bool) -> None:
    if as_json:
        print(record.text())
        return
    for row in record.steps[:1] + record.steps[1:][-1:]:
        figures = "  ".join(f"{name} {value:.4f}" for name, value in row.items() if name != "step")
        print(f"step {row['step']}: {figures}")
