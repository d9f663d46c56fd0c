"""Speed, as ratios within one run: ``make bench``. Not collected by pytest; asserts nothing.

Absolute seconds depend on the machine; the budgets are those of two CPU cores.
"""

import os
import statistics
import subprocess
import sys
import time

from nnxlab import devices
from nnxlab.cases import scan_axis
from nnxlab.model.config import DEEPSEEK3_TINY

BUDGETS = {"verify": (60, 3.0), "verify --config small": (60, 3.0), "parity": (60, 3.0)}


def whole_command(*arguments: str) -> tuple[float, float]:
    """Wall seconds and peak GB of one ``nnxlab`` process."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "nnxlab", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"nnxlab {' '.join(arguments)} failed"
    return time.monotonic() - start, usage.ru_maxrss / 1e6


def scan_axis_seconds(layers: int, mesh) -> float:
    start = time.monotonic()
    scan_axis.run(DEEPSEEK3_TINY.replace(num_decoder_layers=layers), mesh)
    return time.monotonic() - start


def main() -> None:
    print(f"{'command':28}{'seconds':>9}{'budget':>8}{'ratio':>7}{'peak GB':>9}{'budget':>8}")
    for command, (seconds, gigabytes) in BUDGETS.items():
        wall, peak = whole_command(*command.split())
        ratio = wall / seconds
        print(f"{command:28}{wall:9.1f}{seconds:8}{ratio:7.2f}{peak:9.2f}{gigabytes:8}")

    mesh = devices.mesh("fsdp=8")
    scan_axis_seconds(61, mesh)  # warms what is shared
    pairs = [(scan_axis_seconds(61, mesh), scan_axis_seconds(610, mesh)) for _ in range(5)]
    shallow, deep = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(d / s for s, d in pairs)
    print(f"scan-axis: 61 layers {shallow:.2f} s, 610 layers {deep:.2f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
