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
from nnxlab.model.config import DEEPSEEK3_671B, DEEPSEEK3_TINY
from nnxlab.scale import price

BUDGETS = {
    "verify": (60, 3.0),
    "verify --config small": (60, 3.0),
    "parity": (60, 3.0),
    "price": (5, 1.0),  # DeepSeek-V3's 671 B on 512 chips, every slice of every chip
}


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


def price_seconds(layers: int, mesh: dict[str, int]) -> float:
    start = time.monotonic()
    weights = price.weights(DEEPSEEK3_671B.replace(num_decoder_layers=layers))
    price.by_group(price.price(weights, mesh))
    return time.monotonic() - start


def price_is_flat() -> None:
    """Prints what a hundred times the layers and 512 times the chips add to the price's time."""
    few, many = {"fsdp": 8}, {"fsdp": 512, "tensor": 8}
    start, deep, wide = (61, few), (6100, few), (61, many)
    price_seconds(*start)  # warms what is shared
    rounds = [[price_seconds(*size) for size in (start, deep, wide)] for _ in range(15)]
    plain = statistics.median(times[0] for times in rounds)
    print(f"price: 61 layers on 8 chips {plain:.2f} s", end="")
    for index, (name, budget) in enumerate({"6,100 layers": 1.2, "4,096 chips": 1.2}.items(), 1):
        ratio = statistics.median(times[index] / times[0] for times in rounds)
        print(f"; {name}, ratio {ratio:.2f} (budget {budget})", end="")
    print()


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
    price_is_flat()


if __name__ == "__main__":
    main()
