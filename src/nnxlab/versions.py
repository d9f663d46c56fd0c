"""Which versions of Python, jax, flax and qwix are supported; imports none of them."""

import sys
from importlib import metadata

MINIMUM = {"jax": (0, 10), "flax": (0, 12, 4), "qwix": (0, 1, 6)}
PYTHON = ((3, 11), (3, 14))


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
