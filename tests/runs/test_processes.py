import json
import os
import subprocess
import sys

import pytest

from nnxlab.runs import processes


def _train(path, *options):
    command = [sys.executable, "-m", "nnxlab", "train", "--steps", "2", "--length", "8"]
    kept = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run(
        [*command, "--quick", "--json", *([] if path is None else [str(path)]), *options],
        capture_output=True,
        text=True,
        env=kept,
    )
    assert done.returncode == 0, done.stderr
    # With a file or without, stdout holds the result and nothing else: no line of gloo's.
    text = done.stdout if path is None else path.read_text()
    return json.loads(text)["steps"]


@pytest.mark.slow
def test_two_processes_of_four_devices_equal_one_of_eight(tmp_path):
    one = _train(tmp_path / "one.json")
    two = _train(None, "--processes", "2", "--devices-per-process", "4")
    for a, b in zip(one, two, strict=True):
        for figure in ("loss", "mtp_loss", "grad_norm"):
            assert a[figure] == pytest.approx(b[figure], rel=1e-5)


def test_a_failing_process_stops_all_with_its_error():
    with pytest.raises(processes.ProcessError, match="of 2 ended with 2"):
        processes.spawn(["train", "--config", "none"], 2, 1)


def test_a_process_that_nobody_spawned_joins_nothing():
    assert not processes.is_child() and not processes.join()
