import argparse

import pytest

from nnxlab.runs import data, options
from nnxlab.runs.setup import Setup, from_arguments


def _parse(*line):
    parser = argparse.ArgumentParser()
    options.add(parser)
    return from_arguments(parser.parse_args(line))


def test_the_command_line_says_everything_that_python_can(mesh):
    made = _parse("--steps", "3", "--length", "16", "--data", "text", "--quick", "--seed", "5")
    assert (made.steps, made.length, made.data, made.quick, made.seed) == (3, 16, "text", True, 5)
    assert made.config.mtp_num_layers == 1 and made.mesh.shape == {"fsdp": 8}


def test_command_line_and_python_have_the_same_defaults(mesh):
    made = _parse()
    assert made == Setup(config=made.config, mesh=made.mesh)


def test_a_setup_gives_its_batches(mesh):
    made = _parse("--batch", "4", "--length", "16")
    batch = next(made.batches())
    assert batch.tokens.shape == (4, 16)
    assert (batch.tokens == next(data.synthetic(made.config, 4, 16, 0)).tokens).all()


def test_unknown_words_are_refused(mesh):
    with pytest.raises(ValueError, match="unknown config 'tiniest'; known: small"):
        _parse("--config", "tiniest")
    with pytest.raises(ValueError, match="unknown cell 'nnx'"):
        _parse().build("nnx")
