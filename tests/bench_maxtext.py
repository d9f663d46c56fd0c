"""Speed against MaxText itself, as ratios within one run. Not collected by pytest.

    python tests/bench_maxtext.py --maxtext PYTHON

``PYTHON`` is the interpreter of an environment with MaxText 0.2.4 (Python 3.12 or later). Whole
processes take turns, so that both see the same machine; without MaxText it says so and exits 2.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# MaxText's own way to an abstract train state: what its train_compile lowers its step with. The
# NNX path is the default of 0.2.4. Prints the parameters it counted and the time after imports.
ABSTRACT_STATE = """
import json, math, pathlib, sys, time
import jax
jax.config.update("jax_num_cpu_devices", 8)
import maxtext
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train_compile
from maxtext.utils import maxtext_utils
start = time.monotonic()
base = pathlib.Path(maxtext.__path__[0]) / "configs" / "base.yml"
config = pyconfig.initialize(["", str(base), *sys.argv[1:]])
mesh = maxtext_utils.get_mesh_from_config(config)
(state, _), *_ = train_compile.get_shaped_inputs(mesh, config)
params = jax.tree.leaves(nnx.filter_state(state.model, nnx.Param))
print(json.dumps({
    "parameters": sum(math.prod(leaf.shape) for leaf in params),
    "bytes": sum(leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
                 for leaf in params),
    "seconds": time.monotonic() - start,
}))
"""
FLAGS = (
    "run_name=bench",
    "hardware=cpu",
    "skip_jax_distributed_system=true",
    "attention=dot_product",
    "enable_checkpointing=false",
    "per_device_batch_size=1",
    "ici_fsdp_parallelism=8",
)


STEPS = 6
TARGETS = (0.3, 0.4, 0.6)  # of MaxText: seconds, seconds, GB


class BenchError(RuntimeError):
    """A process that should be timed failed."""


def check(maxtext: str) -> None:
    """Raises unless ``maxtext`` is an interpreter that has MaxText 0.2.4."""
    program = "from importlib.metadata import version; print(version('maxtext'))"
    done = subprocess.run([maxtext, "-c", program], capture_output=True, text=True)
    if done.stdout.strip() != "0.2.4":
        said = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise BenchError(f"{maxtext} has no MaxText 0.2.4: {''.join(said)}")


def whole_process(command: list[str], folder: str) -> tuple[dict, float, float]:
    """What ``command`` prints as JSON, its wall seconds and its peak GB."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=folder, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        for file in (out, errors):
            file.seek(0)
        if status:
            raise BenchError(f"{command[0]} failed:\n{errors.read()[-2000:]}")
        text = out.read()
    return json.loads(text[text.index("{") :]), wall, usage.ru_maxrss / 1e6


def abstract_state(maxtext: str, folder: str, rounds: int = 3) -> None:
    """The abstract state of the 671 B model: MaxText's against ``nnxlab price``, in turns."""
    theirs = [maxtext, "-c", ABSTRACT_STATE, "model_name=deepseek3-671b", *FLAGS]
    ours = [sys.executable, "-m", "nnxlab", "price", "--mesh", "fsdp=8", "--json"]
    walls, peaks = [], []
    for _ in range(rounds):
        found, their_wall, their_peak = whole_process(theirs, folder)
        priced, our_wall, our_peak = whole_process(ours, folder)
        if found["parameters"] != priced["parameters"]:
            raise BenchError(f"not the same model: {found['parameters']}, {priced['parameters']}")
        if found["bytes"] != priced["fixed"]["parameter_bytes_per_chip"]:
            raise BenchError(f"not the same shardings: {found['bytes']} bytes a chip in MaxText")
        walls.append((their_wall, our_wall))
        peaks.append((their_peak, our_peak))
    ratio = statistics.median(our / their for their, our in walls)
    their_wall, our_wall = (statistics.median(times) for times in zip(*walls, strict=True))
    their_peak, our_peak = (max(sizes) for sizes in zip(*peaks, strict=True))
    print(
        f"abstract state of deepseek3-671b, whole processes, median of {rounds}: "
        f"MaxText {their_wall:.1f} s ({their_peak:.2f} GB), "
        f"nnxlab price {our_wall:.1f} s ({our_peak:.2f} GB), ratio {ratio:.2f} (target 0.2)"
    )


def training(maxtext: str, folder: str, rounds: int = 1) -> None:
    """Training deepseek3-tiny in full, each with its defaults, in turns; ours in both dtypes."""
    theirs = [
        *(maxtext, "-m", "maxtext.trainers.pre_train.train", _base_config(maxtext)),
        *("model_name=deepseek3-tiny", "mtp_num_layers=1", "max_target_length=128"),
        *("dataset_type=synthetic", f"steps={STEPS}", f"base_output_directory={folder}", *FLAGS),
        *("sparse_matmul=false", "megablox=false"),  # the dense experts that ours are too
    ]
    step_line = re.compile(r"completed step: \d+, seconds: ([\d.]+)")
    ours = [sys.executable, "-m", "nnxlab", "train", "--config", "deepseek3-tiny"]
    for _ in range(rounds):
        reference = _steps(theirs, folder, step_line.findall)
        _report("MaxText (bfloat16)", reference, reference)
        for dtype in ("float32", "bfloat16"):
            figures = Path(folder, f"{dtype}-{time.monotonic_ns()}.csv")
            options = ["--steps", str(STEPS), "--dtype", dtype, "--csv", str(figures)]
            found = _steps([*ours, *options], folder, lambda _, path=figures: _seconds(path))
            _report(f"nnxlab ({dtype})", found, reference)


def _base_config(maxtext: str) -> str:
    program = "import maxtext, pathlib; print(pathlib.Path(maxtext.__path__[0]))"
    done = subprocess.run([maxtext, "-c", program], capture_output=True, text=True, check=True)
    return str(Path(done.stdout.strip().splitlines()[-1]) / "configs" / "base.yml")


def _seconds(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open() as file:
        return [row["seconds"] for row in csv.DictReader(file) if row["tokens_per_second"]]


def _steps(command: list[str], folder: str, seconds) -> tuple[float, float, float]:
    """Seconds from start to the first finished step, median step seconds, peak GB."""
    flags = "--xla_force_host_platform_device_count=8"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    path, first = Path(folder, "said.txt"), None
    with path.open("w") as said:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
        status = 0
        while not status and process.returncode is None:
            time.sleep(0.1)
            if first is None and seconds(path.read_text(errors="replace")):
                first = time.monotonic() - start
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = status
    text = path.read_text(errors="replace")
    if status or first is None:
        raise BenchError(f"{command[0]} failed:\n{text[-2000:]}")
    steady = [float(value) for value in seconds(text)[1:]]
    return first, statistics.median(steady), usage.ru_maxrss / 1e6


def _report(name: str, found, reference) -> None:
    parts = zip(("start to first step", "step", "peak"), found, reference, TARGETS, strict=True)
    shown = [
        f"{label} {value:.2f} ({value / other:.2f}, target {target})"
        for label, value, other, target in parts
    ]
    print(f"{name:20} {'; '.join(shown)}", flush=True)


COMPARISONS = {"abstract-state": abstract_state, "training": training}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maxtext", metavar="PYTHON", help="interpreter that has MaxText 0.2.4")
    parser.add_argument("--only", choices=COMPARISONS, help="one comparison (default: all)")
    arguments = parser.parse_args()
    if not arguments.maxtext:
        print("pass --maxtext PYTHON, the interpreter that has MaxText 0.2.4", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(arguments.maxtext)
            for name, comparison in COMPARISONS.items():
                if arguments.only in (None, name):
                    comparison(arguments.maxtext, folder)
        except (OSError, BenchError) as error:
            print(f"no comparison with MaxText: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
