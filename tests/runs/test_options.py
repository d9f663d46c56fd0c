import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from nnxlab.runs import options


def test_a_count_is_at_least_1():
    assert options.count("3") == 3
    with pytest.raises(argparse.ArgumentTypeError, match="0 is not at least 1"):
        options.count("0")


def test_adding_options_starts_no_jax():
    code = (
        "import sys, argparse; from nnxlab.runs import options; "
        "options.add(argparse.ArgumentParser()); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_device_is_never_written_over():
    # Replacing /dev/null by a file, as root, would break the machine.
    with pytest.raises(argparse.ArgumentTypeError, match="it is no regular file"):
        options.output("/dev/null")


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1"])
def test_a_rate_is_finite_and_above_0(text):
    assert options.rate("3e-5") == 3e-5
    with pytest.raises(argparse.ArgumentTypeError, match="not a finite number above 0"):
        options.rate(text)


def test_a_file_that_cannot_be_written_is_said_before_anything_runs(tmp_path):
    assert options.output("-") == Path("-")
    assert options.output(str(tmp_path / "new.csv")) == tmp_path / "new.csv"
    for path, fault in (
        (tmp_path, "is a folder"),
        (tmp_path / "a" / "b.csv", "there is no folder"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=fault):
            options.output(str(path))
