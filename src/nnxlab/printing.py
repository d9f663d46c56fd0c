"""What the commands write: tables and lines on stdout, progress on stderr."""

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

OUT, ERR = Console(), Console(stderr=True)


def line(text: str) -> None:
    """One line on stdout, taken literally."""
    OUT.print(text, markup=False, highlight=False, soft_wrap=True)


def error(text: str) -> None:
    """One red line on stderr."""
    ERR.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def report(figures: dict, where: Path) -> bool:
    """Figures as JSON into a file, or onto stdout for ``-``; returns whether stdout has them."""
    text = json.dumps(figures, indent=1)
    if str(where) == "-":
        print(text)
        return True
    where.write_text(text + "\n", encoding="utf-8")
    return False


def progress(text: str, start: float) -> None:
    """One line on stderr with the seconds since ``start`` (``time.monotonic()``)."""
    shown = f"{time.monotonic() - start:6.1f} s  {text}"
    ERR.print(shown, markup=False, highlight=False, soft_wrap=True)


def table(frame) -> None:
    """A DataFrame without its index; no cell is cut."""
    shown = Table(box=box.SIMPLE, pad_edge=False)
    for column in frame.columns:
        shown.add_column(column, overflow="fold")
    for row in frame.itertuples(index=False):
        shown.add_row(*(str(cell).replace("[", "\\[") for cell in row))
    OUT.print(shown)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Ctrl-C ends at a place of the caller's: gives a function that raises there if it was pressed.

    Python raises KeyboardInterrupt wherever it is, and loses it where that is a callback or a
    destructor that native code runs, as in a training step. A second Ctrl-C raises at once.
    """
    pressed = []

    def note(number, frame) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def steps(total: int, on: bool = True) -> Iterator[Callable[[dict[str, float]], None]]:
    """A bar over ``total`` training steps; gives a function that takes each finished one."""
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=ERR, disable=not on) as bar:
        task = bar.add_task("compiling", total=total)

        def show(row: dict[str, float]) -> None:
            text = f"loss {row['loss']:.4f}  mtp_loss {row['mtp_loss']:.4f}"
            text += f"  {row['tokens_per_second']:,.0f} tokens/s"
            bar.update(task, advance=1, description=text)

        yield show
