import importlib.util
import os
import subprocess
import sys
import types

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import given
from jax.experimental import topologies
from jax.sharding import AxisType

from nnxlab import devices

axes = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.integers(1, 999), min_size=1
)


@given(axes)
def test_a_mesh_text_is_read_back(sizes):
    text = ",".join(f"{name}={size}" for name, size in sizes.items())
    assert devices.parse_mesh(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "fsdp", "fsdp=", "fsdp=0", "fsdp=-1", "=8", "fsdp=8;x=1", "8"]
)
def test_another_form_is_refused(text):
    with pytest.raises(ValueError, match="is not AXIS=SIZE"):
        devices.parse_mesh(text)


def test_an_axis_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="axis 'a' stands twice"):
        devices.parse_mesh("a=2,a=4")


def test_axis_types_are_auto_and_the_text_says_what_it_is_made_of(mesh):
    assert mesh.axis_types == (AxisType.Auto,)
    assert devices.describe(mesh) == "fsdp=8 on 8 cpu devices"
    assert devices.describe(devices.mesh("data=1")) == "data=1 on 1 cpu device"


def test_too_many_devices_are_refused_with_what_to_set():
    count = 2 * len(jax.devices("cpu"))
    with pytest.raises(devices.TooFewDevicesError, match=f"JAX_NUM_CPU_DEVICES={count}"):
        devices.mesh({"fsdp": count})


def test_a_platform_that_is_not_there_is_named():
    with pytest.raises(devices.TooFewDevicesError, match="no tpu devices here"):
        devices.mesh("fsdp=1", platform="tpu")


def test_one_shot_options_are_for_cpu_only(monkeypatch):
    assert devices.one_shot()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert devices.one_shot() == {}


def _fresh(code, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True
    )


MESH = "from nnxlab import devices; print(devices.describe(devices.mesh('fsdp=8')))"


def test_eight_cpu_devices_are_made_where_there_is_one():
    assert _fresh(MESH).stdout.strip() == "fsdp=8 on 8 cpu devices"


def test_a_larger_count_of_the_users_is_kept():
    done = _fresh(MESH + "; import jax; print(jax.device_count())", JAX_NUM_CPU_DEVICES="16")
    assert done.stdout.split()[-1] == "16"


def test_jax_started_too_early_is_said_to_be_so():
    done = _fresh("import jax; jax.devices(); " + MESH)
    assert "TooFewDevicesError: the mesh needs 8 devices and jax has 1 cpu" in done.stderr
    assert "before the first jax computation" in done.stderr


NO_LIBTPU = importlib.util.find_spec("libtpu") is None
NAMED = "from nnxlab import devices; m = devices.tpu_topology('v6e:2x4', 'fsdp=4,tensor=2')"


def test_an_unknown_topology_lists_those_there_are():
    with pytest.raises(ValueError, match="unknown chip 'v9'; known: v4, v5e, v5p, v6e, cpu"):
        devices.tpu_topology("v9:2x2")
    with pytest.raises(ValueError, match="mesh fsdp=4 has 4 chips, v6e:2x4 has 8"):
        devices.tpu_topology("v6e:2x4", "fsdp=4")


def test_without_the_compiler_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'nnxlab\[tpu-compile\]', or make tpu"):
        devices.tpu_topology("v6e:2x4")


def test_cpu_is_a_topology_without_the_compiler(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert devices.tpu_topology("cpu:8").shape == {"fsdp": 8}


@pytest.mark.skipif(NO_LIBTPU, reason="needs the TPU's compiler: make tpu")
def test_chips_that_are_not_there_come_without_a_word_on_the_screen():
    done = _fresh(NAMED + "; print(dict(m.shape), m.devices.flat[0].platform)")
    assert done.stdout.strip() == "{'fsdp': 4, 'tensor': 2} tpu" and done.stderr == ""


@pytest.mark.skipif(NO_LIBTPU, reason="needs the TPU's compiler: make tpu")
def test_several_topologies_are_had_in_one_process_beside_cpu_devices():
    code = "; n = devices.tpu_topology('v5p:2x2x4'); print(n.size, devices.mesh('fsdp=8').size)"
    assert _fresh(NAMED + code).stdout.split() == ["16", "8"]


@pytest.mark.skipif(NO_LIBTPU, reason="needs the TPU's compiler: make tpu")
def test_two_processes_have_the_compiler_at_a_time():
    # libtpu locks itself to one process, for the sake of chips that are not here.
    other = f"import subprocess, sys; {NAMED}; print(m.size, flush=True); "
    other += (
        f"print(subprocess.check_output([sys.executable, '-c', {NAMED + '; print(m.size)'!r}]))"
    )
    done = _fresh(other)
    assert done.stdout.split() == ["8", r"b'8\n'"], done.stderr


@pytest.mark.skipif(NO_LIBTPU, reason="needs the TPU's compiler: make tpu")
def test_one_chip_is_a_topology_and_v4_by_cores_is_refused():
    code = "from nnxlab import devices; print(devices.tpu_topology('v6e:1x1').size); "
    done = _fresh(code + "devices.tpu_topology('v4:2x2x2')")
    assert done.stdout.strip() == "1"
    assert "v4:2x2x2: libtpu describes 16 devices for its 8 chips" in done.stderr


def test_a_host_with_chips_keeps_its_own_settings(monkeypatch):
    names = ("TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "ALLOW_MULTIPLE_LIBTPU_LOAD")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "has_tpu", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    slice_of_8 = types.SimpleNamespace(devices=jax.devices("cpu")[:8])
    monkeypatch.setattr(topologies, "get_topology_desc", lambda **_: slice_of_8)
    assert devices.tpu_topology("v6e:2x4").size == 8
    assert not any(name in os.environ for name in names)


def test_native_chatter_is_kept_off_the_screen_and_told_on_failure(capfd):
    with devices.quiet():
        os.write(2, b"chatter\n")
    with pytest.raises(RuntimeError, match="(?s)no such slice.*chatter"), devices.quiet():
        os.write(2, b"chatter\n")
        raise RuntimeError("no such slice")
    os.write(2, b"spoken\n")
    assert capfd.readouterr().err == "spoken\n"


@pytest.mark.skipif(NO_LIBTPU, reason="needs the TPU's compiler: make tpu")
@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"JAX_NUM_CPU_DEVICES": "8"},
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    ],
)
def test_the_compiler_alone_makes_no_noise_in_other_commands(chosen):
    # With libtpu's lock out of the way: another process that holds it would keep it silent too.
    assert _fresh(MESH, ALLOW_MULTIPLE_LIBTPU_LOAD="1", **chosen).stderr == ""


def test_a_platform_that_the_user_names_is_kept():
    code = "; import jax; print(jax.config.jax_platforms)"
    assert _fresh(MESH + code, JAX_PLATFORMS="cpu").stdout.split()[-1] == "cpu"
    if NO_LIBTPU:
        assert _fresh(MESH + code).stdout.split()[-1] == "None"
