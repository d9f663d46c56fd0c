"""The options that every command about training shares; importing this starts nothing."""

import argparse
import math
import os
from pathlib import Path

CONFIGS, DTYPES = "small (default) or deepseek3-tiny", ("float32", "bfloat16")


def add(parser: argparse.ArgumentParser) -> None:
    """Adds what ``setup.from_arguments`` reads."""
    option = parser.add_argument
    option("--config", default="small", help=CONFIGS)
    option("--steps", type=count, default=20, help="default %(default)s")
    option("--mesh", default="fsdp=8", help="as fsdp=4,tensor=2 (default %(default)s)")
    option("--seed", type=int, default=0, help="of the weights and the data")
    option("--batch", type=count, default=8, metavar="ROWS", help="default %(default)s")
    option("--length", type=count, default=128, metavar="TOKENS", help="default %(default)s")
    option("--accumulate", type=count, default=1, metavar="N", help="microbatches a step")
    option("--data", default="synthetic", choices=["synthetic", "text"], help="default %(default)s")
    option("--dtype", default="float32", choices=DTYPES, help="of activations")
    option("--remat", default="full", choices=["none", "full", "minimal"], help="of the layers")
    option("--quantization", default="fp8_full", help="fp8_full or int8, for the qwix cells")
    option("--learning-rate", type=rate, default=3e-5, help="its peak (default %(default)g)")
    option("--quick", action="store_true", help="compile faster, run slower: for a few steps")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json``: a Path, ``-`` for stdout, or None."""
    text = "write JSON, or print it"
    parser.add_argument("--json", nargs="?", const="-", type=output, metavar="FILE", help=text)


def output(text: str) -> Path:
    """A file to write, for argparse: what cannot be written is said before anything is computed."""
    path = Path(text)
    if text != "-" and (path.is_dir() or not path.parent.is_dir()):
        fault = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"cannot write {text}: {fault}")
    if text != "-" and path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"cannot write {text}: it is no regular file")
    if text != "-" and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {text}: permission denied")
    return path


def rate(text: str) -> float:
    """A finite number above 0, for argparse."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def count(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
