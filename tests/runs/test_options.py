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


def test_a_file_that_cannot_be_written_is_said_before_anything_runs(tmp_path):
    assert options.output("-") == Path("-")
    assert options.output(str(tmp_path / "new.csv")) == tmp_path / "new.csv"
    for path, fault in (
        (tmp_path, "is a folder"),
        (tmp_path / "a" / "b.csv", "there is no folder"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=fault):
            options.output(str(path))
