"""Numbers read off MaxText itself: the right answers that models and cases are held against.

``deepseek3_small``: weights, batch and results of its NNX DeepSeek with one MTP layer.
``scan_axis_deepseek3_tiny.json``: its sharding metadata before and after bug 3.
``maxtext_runs.json``: losses of its training runs.
"""

import json
from pathlib import Path

_FOLDER = Path(__file__).parent
SMALL_DUMP = _FOLDER / "deepseek3_small.npz"


def scan_axis_tiny() -> dict:
    """MaxText's deepseek3-tiny on fsdp=8: every variable's names and specs, before and after."""
    return json.loads((_FOLDER / "scan_axis_deepseek3_tiny.json").read_text())


def maxtext_runs() -> dict:
    """Losses, times and errors of MaxText's own training runs at the PR and before it."""
    return json.loads((_FOLDER / "maxtext_runs.json").read_text())
