"""``nnxlab train``: one cell, some steps, a progress bar, and every finished step on disk."""

import argparse
import contextlib
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


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
        return processes.spawn(
            arguments.command_line, arguments.processes, arguments.devices_per_process
        )
    if arguments.distributed:
        jax.distributed.initialize()
    processes.join()
    return _train(arguments)


def _train(arguments: argparse.Namespace) -> int:
    import jax

    from nnxlab import devices
    from nnxlab.model.config import config_named
    from nnxlab.runs import data, loop
    from nnxlab.runs.record import Record

    broken = [bug for bug in (arguments.broken or "").split(",") if bug]
    sizes = config_named(
        arguments.config, dtype=arguments.dtype, remat_policy=arguments.remat, mtp_num_layers=1
    )
    mesh = devices.mesh(arguments.mesh)
    cell = _cell(arguments, sizes, broken)
    batches = data.SOURCES[arguments.data](
        cell.config, arguments.batch, arguments.length, arguments.seed
    )
    head = {
        "cell": arguments.cell,
        "broken": broken,
        "config": arguments.config,
        "mesh": devices.describe(mesh),
        "data": arguments.data,
    }
    first = jax.process_index() == 0
    record = Record(head, _file(arguments.json, first), arguments.csv if first else None)
    prepared = loop.prepare(
        cell,
        mesh,
        steps=arguments.steps,
        seed=arguments.seed,
        batch=arguments.batch,
        accumulate=arguments.accumulate,
        learning_rate=arguments.learning_rate,
        quick=arguments.quick,
    )
    saves = _checkpoints(arguments, prepared)
    try:
        with _bar(arguments.steps, first) as show:
            for row in loop.rows(prepared, batches, arguments.steps):
                record.add(row)
                show(row)
                if saves:
                    saves.save()
    finally:
        record.close()
        if saves:
            saves.close()
        if first:
            _print(record, arguments.json == "-")
    return 0


def _cell(arguments: argparse.Namespace, sizes, broken: list[str]):
    from nnxlab.runs import cells

    try:
        return cells.build(arguments.cell, sizes, broken, arguments.quantization)
    except TypeError as error:
        if "qwix-targets" not in broken:
            raise
        # The bug that was asked for: its message is the result, not a defect of this command.
        raise RuntimeError(f"TypeError: {str(error).splitlines()[0]}") from error


def _checkpoints(arguments: argparse.Namespace, prepared):
    if arguments.checkpoints is None:
        return None
    from nnxlab.runs.checkpoint import CheckpointError, Checkpoints

    saves = Checkpoints(arguments.checkpoints, prepared, arguments.save_every)
    if arguments.resume:
        saves.restore()
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
    add("--config", default="small", help="small (default) or deepseek3-tiny")
    add("--steps", type=_count, default=20, help="default %(default)s")
    add("--mesh", default="fsdp=8", help="as fsdp=4,tensor=2 (default %(default)s)")
    add("--seed", type=int, default=0, help="of the weights and the data")
    add("--batch", type=_count, default=8, metavar="ROWS", help="default %(default)s")
    add("--length", type=_count, default=128, metavar="TOKENS", help="default %(default)s")
    add("--accumulate", type=_count, default=1, metavar="N", help="microbatches a step")
    add("--data", default="synthetic", choices=["synthetic", "text"], help="default %(default)s")
    add("--dtype", default="float32", choices=["float32", "bfloat16"], help="of activations")
    add("--remat", default="full", choices=["none", "full", "minimal"], help="of the layers")
    add("--quantization", default="fp8_full", help="fp8_full or int8, for the qwix cells")
    add("--learning-rate", type=float, default=3e-5, help="its peak (default %(default)g)")
    add("--quick", action="store_true", help="compile faster, run slower: for a few steps")
    add("--processes", type=_count, default=1, metavar="N", help="started on this machine")
    add("--distributed", action="store_true", help="join the other hosts of a TPU pod slice")
    add("--devices-per-process", type=_count, default=4, metavar="N", help="default %(default)s")
    add("--checkpoints", type=Path, metavar="DIR", help="save into DIR")
    add("--save-every", type=_count, default=10, metavar="N", help="steps between two saves")
    add("--resume", action="store_true", help="go on from the last save in DIR")
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON, or print it")
    add("--csv", type=Path, metavar="FILE", help="write a line a step")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _file(json: str | None, first: bool) -> Path | None:
    return Path(json) if first and json not in (None, "-") else None


@contextlib.contextmanager
def _bar(steps: int, first: bool):
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not first) as progress:
        task = progress.add_task("compiling", total=steps)

        def show(row: dict[str, float]) -> None:
            text = f"loss {row['loss']:.4f}  mtp_loss {row['mtp_loss']:.4f}"
            text += f"  {row['tokens_per_second']:,.0f} tokens/s"
            progress.update(task, completed=row["step"] + 1, description=text)

        yield show


def _print(record, as_json: bool) -> None:
    if as_json:
        print(record.text())
        return
    for row in record.steps[:1] + record.steps[1:][-1:]:
        figures = "  ".join(f"{name} {value:.4f}" for name, value in row.items() if name != "step")
        print(f"step {row['step']}: {figures}")
