"""Eight CPU devices for the whole session, asked for before anything starts jax."""

import pytest

from nnxlab import devices, reference
from nnxlab.model import config, inputs, nnx_model

devices.prepare(8)


@pytest.fixture(scope="session")
def mesh():
    return devices.mesh("fsdp=8")


@pytest.fixture(scope="session")
def sizes():
    """The small config with one MTP layer."""
    return config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1)


@pytest.fixture
def model(sizes):
    return nnx_model.create(sizes)


@pytest.fixture(scope="session")
def batch(sizes):
    return inputs.synthetic(sizes)


@pytest.fixture(scope="session")
def maxtext_table():
    return reference.scan_axis_tiny()
