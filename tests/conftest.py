"""Eight CPU devices for the whole session, asked for before anything starts jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import settings
from jax.extend.core import jaxprs_in_params

from nnxlab import devices, reference
from nnxlab.model import config, inputs, nnx_model

# No deadline: the first example compiles. Derandomised: a test that passes here passes in CI.
settings.register_profile("lab", deadline=None, derandomize=True)
settings.load_profile("lab")
devices.prepare(8)


@pytest.fixture(scope="session")
def mesh():
    return devices.mesh("fsdp=8")


@pytest.fixture(scope="session")
def sizes():
    """The small config with one MTP layer."""
    return config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1)


@pytest.fixture(scope="session")
def _created(sizes):
    return nnx_model.create(sizes)


@pytest.fixture
def model(_created):
    """The small model with one MTP layer, seed 0; each test's own copy, as building takes 4 s."""
    return nnx.clone(_created)


@pytest.fixture(scope="session")
def filled():
    """Makes a model of any config from random numbers of the host: nothing is compiled."""

    def make(sizes, seed=0):
        graphdef, state = nnx.split(nnx_model.abstract(sizes))
        random = np.random.default_rng(seed)
        return nnx.merge(graphdef, jax.tree.map(lambda x: _normal(random, x), state))

    return make


@pytest.fixture(scope="session")
def equations():
    """Every equation of a traced function, those inside scan, jit and checkpoint included."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in jaxprs_in_params(equation.params):
                yield from walk(inner)

    return lambda function, *args: list(walk(jax.make_jaxpr(function)(*args).jaxpr))


def _normal(random, leaf):
    # Large enough for attention to be no plain mean: a fault in it must show in the losses.
    return jnp.asarray(random.normal(scale=0.3, size=leaf.shape), leaf.dtype)


@pytest.fixture(scope="session")
def batch(sizes):
    return inputs.synthetic(sizes)


@pytest.fixture(scope="session")
def maxtext_table():
    return reference.scan_axis_tiny()
