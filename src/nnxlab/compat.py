"""Which versions are supported, and how this flax keeps a variable's sharding metadata.

The metadata key was ``sharding`` up to flax 0.11.1, ``sharding_names`` up to 0.12.3 and is
``out_sharding`` since 0.12.4; read under another version's key, it is None and every weight is
replicated without an error (tpu-inference #3004). All reading and writing of it is done here.
"""

import sys
from importlib import metadata

from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

SHARDING_KEYS = ("out_sharding", "sharding_names", "sharding")
MINIMUM = {"jax": (0, 10), "flax": (0, 12, 4), "qwix": (0, 1, 6)}
PYTHON = ((3, 11), (3, 14))

Names = tuple[str | tuple[str, ...] | None, ...]


class UnsupportedVersionError(ImportError):
    """A package, or Python itself, is outside the range that nnxlab was tested with."""


def check_versions(installed: dict[str, str] | None = None, python=sys.version_info) -> None:
    """Raises once, naming every package that is missing or too old.

    Args:
      installed: Version by package; read from the environment if not given.
      python: The interpreter's version.

    Raises:
      UnsupportedVersionError: With what is there, what is needed and the command that mends it.
    """
    installed = _installed() if installed is None else installed
    faults = []
    if not PYTHON[0] <= tuple(python[:2]) < PYTHON[1]:
        faults.append(f"Python {python[0]}.{python[1]} is not one of 3.11, 3.12, 3.13")
    for package, least in MINIMUM.items():
        needed = ".".join(map(str, least))
        version = installed.get(package)
        if version is None:
            faults.append(f"{package} is not installed (needs >= {needed})")
        elif _numbers(version) < least:
            faults.append(f"{package} {version} is too old (needs >= {needed})")
    if faults:
        pins = " ".join(f"'{p}>={'.'.join(map(str, v))}'" for p, v in MINIMUM.items())
        raise UnsupportedVersionError(
            f"nnxlab cannot run here: {'; '.join(faults)}. "
            f"Mend it with: pip install {pins} (then restart Python)."
        )


def logical_axes(variable: nnx.Variable) -> Names | None:
    """The logical axis names that ``variable`` declares, or None where it declares none.

    Accepts what flax accepts: a tuple or list, a PartitionSpec, a NamedSharding (its spec).

    Raises:
      ValueError: Two metadata keys hold different names.
    """
    found = {}
    stored = variable.get_metadata()
    for key in SHARDING_KEYS:
        value = stored.get(key)
        if isinstance(value, NamedSharding):
            value = value.spec
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, PartitionSpec | tuple | list):
            found[key] = tuple(value)
    if len(set(found.values())) > 1:
        raise ValueError(f"sharding metadata disagrees with itself: {found}")
    return next(iter(found.values()), None)


def with_logical_axes(variable: nnx.Variable, names: Names) -> nnx.Variable:
    """A copy of ``variable`` that declares ``names`` under every key it already uses."""
    return variable.replace(**{key: names for key in _keys_in_use(variable)})


def set_logical_axes(variable: nnx.Variable, names: Names) -> None:
    """Makes ``variable`` itself declare ``names`` under every key it already uses."""
    variable.set_metadata(**{key: names for key in _keys_in_use(variable)})


def param(value, names: Names) -> nnx.Param:
    """A parameter that declares ``names`` and is not placed on a mesh at creation."""
    return nnx.Param(value, out_sharding=names, eager_sharding=False)


def _keys_in_use(variable: nnx.Variable) -> list[str]:
    stored = variable.get_metadata()
    return [key for key in SHARDING_KEYS if stored.get(key) is not None] or [SHARDING_KEYS[0]]


def _installed() -> dict[str, str]:
    versions = {}
    for package in MINIMUM:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
