import importlib.util

import pytest

from nnxlab import devices
from nnxlab.model import config
from nnxlab.runs import cells
from nnxlab.runs.step import plan
from nnxlab.scale import aot

SMALL = config.DEEPSEEK3_SMALL.replace(num_decoder_layers=2, first_num_dense_layers=1)
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU's compiler: make tpu, or pip install 'nnxlab[tpu-compile]'",
)


@pytest.fixture(scope="module")
def cell():
    return cells.build("nnx_mtp", SMALL)


@pytest.fixture(scope="module")
def on_cpu(mesh):
    broken = cells.build("nnx_mtp", SMALL, ["scan-axis"])
    made = aot.steps(cells.build("nnx_mtp", SMALL), broken, mesh, 8)
    return {name: aot.compiled(step, 8, 8, forward=True) for name, step in made.items()}


@pytest.mark.slow
def test_the_compiler_says_what_each_chip_holds(on_cpu):
    fixed, broken = on_cpu["fixed"], on_cpu["broken"]
    assert fixed["parameter_bytes_per_chip"] < broken["parameter_bytes_per_chip"]
    for found in (fixed, broken):
        # The batch is all that a forward is given beside the weights: five int32 rows of 8.
        assert found["argument_bytes"] - found["parameter_bytes_per_chip"] <= 5 * 8 * 4
        assert found["peak_bytes"] >= found["argument_bytes"] + found["temp_bytes"]
        assert found["flops"] > 0 and found["hbm_share"] is None
    gathers = [found["collectives"]["all-gather"]["count"] for found in (fixed, broken)]
    assert gathers[0] > gathers[1]  # what is replicated need not be gathered


def test_want_of_memory_is_a_result_and_any_other_failure_is_raised(cell, mesh, monkeypatch):
    class Refusing:
        def __init__(self, message):
            self.message = message

        def compile(self):
            raise RuntimeError(self.message)

    step = plan(cell, mesh, steps=2)
    said = "RESOURCE_EXHAUSTED: Ran out of memory\nLargest allocations: ..."
    monkeypatch.setattr(type(step), "lower", lambda *_, **__: Refusing(said))
    found = aot.compiled(step, 8, 8)
    assert found["error"] == said.splitlines()[0]
    assert found["parameter_bytes_per_chip"] == aot.parameter_bytes(step)
    monkeypatch.setattr(type(step), "lower", lambda *_, **__: Refusing("INTERNAL: no"))
    with pytest.raises(RuntimeError, match="INTERNAL: no"):
        aot.compiled(step, 8, 8)


@pytest.mark.parametrize(
    ("count", "axes"),
    [(1, {"fsdp": 1}), (8, {"fsdp": 8}), (64, {"data": 8, "fsdp": 8}), (6, {"data": 3, "fsdp": 2})],
)
def test_fsdp_goes_as_far_as_the_weights_divide_and_data_takes_the_rest(cell, count, axes):
    assert aot.default_axes(cell, count) == axes


def test_local_chips_are_asked_for_by_name_and_missed_by_name(cell, monkeypatch):
    monkeypatch.setattr(devices, "has_tpu", lambda: False)
    with pytest.raises(devices.TooFewDevicesError, match="topology local: this host has no TPU"):
        aot.mesh("local", None, cell)


def test_cpu_devices_are_a_topology_too(cell):
    assert aot.mesh("cpu:8", "fsdp=4,tensor=2", cell).shape == {"fsdp": 4, "tensor": 2}


@needs_libtpu
@pytest.mark.slow
def test_the_tpu_compiler_refuses_the_broken_671b_step():
    # The refusal is quick; that the fixed step compiles takes two minutes: program's stored table.
    sizes = config.DEEPSEEK3_671B.replace(dtype="bfloat16", remat_policy="full")
    broken = cells.build("nnx_mtp", sizes, ["scan-axis"])
    mesh = devices.tpu_topology("v5p:8x8x8")
    step = plan(broken, mesh, steps=aot.STEPS, batch=512, names=broken.names_after)
    assert aot.compiled(step, 512, 128)["error"].startswith("RESOURCE_EXHAUSTED: ")
