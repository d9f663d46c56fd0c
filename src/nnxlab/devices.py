"""One call for a device mesh: TPU chips where there are enough, else that many CPU devices."""

import contextlib
import importlib.metadata
import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from nnxlab import chips

DEFAULT_CPU_DEVICES = 8


class TooFewDevicesError(RuntimeError):
    """The mesh asks for more devices than jax has, and jax can no longer be given more."""


def parse_mesh(text: str) -> dict[str, int]:
    """``"fsdp=4,tensor=2"`` -> ``{"fsdp": 4, "tensor": 2}``.

    Raises:
      ValueError: The text has another form, a size below 1 or an axis twice.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().partition("=")
        if not name.isidentifier() or not equals or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh {text!r}: {part!r} is not AXIS=SIZE, as in fsdp=4,tensor=2")
        if name in axes:
            raise ValueError(f"mesh {text!r}: axis {name!r} stands twice")
        axes[name] = int(size)
    return axes


def prepare(count: int = DEFAULT_CPU_DEVICES) -> None:
    """Asks jax for ``count`` CPU devices, if nobody has asked yet and jax has not started.

    Harmless at any time. ``JAX_NUM_CPU_DEVICES`` or a device count in ``XLA_FLAGS``, set by the
    user, wins. Where only the TPU's compiler is installed, jax is kept from looking for chips.
    """
    if not jax.config.jax_platforms and _only_the_compiler():
        jax.config.update("jax_platforms", "cpu")  # has no effect once jax has started
    chosen = os.environ.get("JAX_NUM_CPU_DEVICES") or (
        "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    )
    if chosen or jax.config.jax_num_cpu_devices >= count:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # jax has started: what it has is what there is, and mesh() says if it is too few


def mesh(axes: dict[str, int] | str, *, platform: str | None = None) -> Mesh:
    """A mesh with Auto axes, on TPU chips if there are enough of them, else on CPU devices.

    Args:
      axes: Axis sizes by name, or as ``"fsdp=4,tensor=2"``.
      platform: ``"tpu"`` or ``"cpu"`` to insist on one.

    Raises:
      TooFewDevicesError: Says how many there are, how many are needed and what to set.
    """
    axes = parse_mesh(axes) if isinstance(axes, str) else axes
    count = math.prod(axes.values())
    prepare(max(count, DEFAULT_CPU_DEVICES))
    devices = _devices(count, platform)
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), devices=devices, axis_types=kinds)


def describe(mesh: Mesh) -> str:
    """``fsdp=8 on 8 cpu devices``: what a figure was made on, without ids or versions."""
    platform = mesh.devices.flat[0].platform
    sizes = ",".join(f"{name}={size}" for name, size in mesh.shape.items())
    return f"{sizes} on {mesh.devices.size} {platform} device{'s' * (mesh.devices.size != 1)}"


def one_shot() -> dict[str, int]:
    """Compiler options for a program that runs once: on CPU, half the compile time."""
    return {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}


def has_tpu() -> bool:
    """Whether this machine has TPU chips, without starting jax."""
    return any(map(os.path.exists, ("/dev/accel0", "/dev/vfio/0")))


def _only_the_compiler() -> bool:
    """Whether libtpu is here without a TPU, nor a GPU: jax would look for chips, and say so."""
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    return bool(importlib.util.find_spec("libtpu")) and not has_tpu() and not plugins


def tpu_topology(name: str, axes: dict[str, int] | str | None = None) -> Mesh:
    """A mesh of the chips of a TPU slice that need not be there: for compiling, not for running.

    Args:
      name: As ``"v6e:2x4"``.
      axes: Axis sizes by name, or as ``"fsdp=4,tensor=2"`` (default: all chips under fsdp).

    Raises:
      ImportError: libtpu, the TPU's compiler, is not installed; names the extra.
      ValueError: An unknown name, with those known; axes of another number of chips; v4, whose
        chips libtpu describes core by core.
      RuntimeError: libtpu refuses the topology; with what it said.
    """
    chip, shape = chips.parse_topology(name)
    count = math.prod(shape)
    axes = parse_mesh(axes) if isinstance(axes, str) else axes or {"fsdp": count}
    if math.prod(axes.values()) != count:
        sizes = ",".join(f"{axis}={size}" for axis, size in axes.items())
        raise ValueError(f"mesh {sizes} has {math.prod(axes.values())} chips, {name} has {count}")
    if chip is chips.CPU:
        return mesh(axes, platform="cpu")
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            f"{name} needs the TPU's compiler, which is not installed (0.6 GB): "
            "pip install 'nnxlab[tpu-compile]', or make tpu in the checkout"
        )
    prepare()
    if not has_tpu():
        _compile_only()
    from jax.experimental import topologies

    # A host has 2x2 chips unless told otherwise, and one chip is no multiple of that.
    host = {"chips_per_host_bounds": [1, 1, 1]} if count == 1 else {}
    with quiet():
        described = topologies.get_topology_desc(platform="tpu", topology_name=name, **host)
    if len(described.devices) != count:
        raise ValueError(
            f"{name}: libtpu describes {len(described.devices)} devices for its {count} chips, as "
            "the two cores of a v4 chip stand apart; name a topology of v5e, v5p or v6e"
        )
    kinds = (AxisType.Auto,) * len(axes)
    chosen = np.array(described.devices).reshape(tuple(axes.values()))
    return Mesh(chosen, tuple(axes), axis_types=kinds)


def _compile_only() -> None:
    # Read when libtpu is loaded; what the user has set wins. Without chips there is no metadata
    # server to ask about this host, and nothing for libtpu's lock to guard: several processes may
    # compile at a time, as pytest's workers do.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what native code writes to stderr off the screen, and in the error if it fails.

    Raises:
      RuntimeError: What the body raised of that kind, followed by the last lines written.
    """
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except RuntimeError as error:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()[-5:]
            raise RuntimeError("\n".join([str(error), *lines])) from error
        finally:
            os.dup2(before, 2)
            os.close(before)


def _devices(count: int, platform: str | None) -> list[jax.Device]:
    found = {}
    for kind in [platform] if platform else [jax.default_backend(), "cpu"]:
        try:
            found[kind] = jax.devices(kind)
        except RuntimeError as error:
            raise TooFewDevicesError(f"no {kind} devices here: {error}") from error
        if len(found[kind]) >= count:
            return found[kind][:count]
    there = " and ".join(f"{len(devices)} {kind}" for kind, devices in found.items())
    raise TooFewDevicesError(
        f"the mesh needs {count} devices and jax has {there}. jax has started already or was told "
        f"so: set JAX_NUM_CPU_DEVICES={count} before Python starts, or call "
        f"nnxlab.devices.prepare({count}) before the first jax computation."
    )
