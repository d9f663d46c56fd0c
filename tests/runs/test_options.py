import argparse
import subprocess
import sys

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
