"""Numbers read off MaxText itself: the right answers that models and cases are held against.

``deepseek3_small``: weights, batch and results of its NNX DeepSeek with one MTP layer.
``scan_axis_deepseek3_tiny.json``: its sharding metadata before and after bug 3.
``maxtext_runs.json``: losses of its training runs.

Two files are not MaxText's but this package's own, for the minutes they take:
``train_deepseek3_tiny.json``: what ``nnxlab train --config deepseek3-tiny --steps 20`` wrote;
``tpu_compile.json``: what ``nnxlab compile --matrix`` wrote.
"""

import json
from pathlib import Path

import pandas as pd

_FOLDER = Path(__file__).parent
SMALL_DUMP = _FOLDER / "deepseek3_small.npz"


def scan_axis_tiny() -> dict:
    """MaxText's deepseek3-tiny on fsdp=8: every variable's names and specs, before and after."""
    return json.loads((_FOLDER / "scan_axis_deepseek3_tiny.json").read_text())


def maxtext_runs() -> dict:
    """Losses, times and errors of MaxText's own training runs at the PR and before it."""
    return json.loads((_FOLDER / "maxtext_runs.json").read_text())


def full_run() -> pd.DataFrame:
    """Our own run of deepseek3-tiny in full, one row a step; written by ``nnxlab train``."""
    return pd.DataFrame(json.loads((_FOLDER / "train_deepseek3_tiny.json").read_text())["steps"])


def maxtext_full_run() -> pd.DataFrame:
    """MaxText's run of the same model, from its own initial weights, one row a step."""
    run = maxtext_runs()["full"]["fixed nnx_mtp, 20 steps"]
    frame = pd.DataFrame({name: run[name] for name in ("loss", "mtp_loss")})
    return frame.assign(step=range(len(frame)))


def tpu_compile() -> dict:
    """What the TPU's compiler said of each program of ``scale.program.MATRIX``, and its version."""
    return json.loads((_FOLDER / "tpu_compile.json").read_text())
