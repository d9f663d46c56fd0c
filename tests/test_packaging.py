"""The files a user sets up from agree with one another, and a set-up from them works."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
STACK = {"jax", "jaxlib", "flax", "qwix", "optax", "jupyterlab", "ipykernel", "nbval", "pytest"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines(path):
    kept = (line.partition("#")[0].strip() for line in (ROOT / path).read_text().splitlines())
    return [line for line in kept if line]


def locked(python):
    """The pins of requirements.txt that hold on Linux under ``python``, by package."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    pins = {}
    for pin in map(Requirement, lines("requirements.txt")):
        if pin.marker is None or pin.marker.evaluate(environment):
            name = canonicalize_name(pin.name)
            assert name not in pins, f"{name} is pinned twice for Python {python}"
            pins[name] = pin
    return pins


def declared():
    extras = itertools.chain.from_iterable(PROJECT["optional-dependencies"].values())
    wanted = map(Requirement, itertools.chain(PROJECT["dependencies"], extras))
    return [requirement for requirement in wanted if requirement.name != PROJECT["name"]]


def conda():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    packages = [item for item in environment["dependencies"] if isinstance(item, str)]
    (pip,) = (item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    return environment, packages, pip


def make(*arguments):
    # Under `make test`, these would hand this run's settings down.
    environment = {k: v for k, v in os.environ.items() if not re.match(r"M(AKE)?(FLAGS|LEVEL)", k)}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_requirements_pin_every_package_exactly():
    for pin in map(Requirement, lines("requirements.txt")):
        assert [specifier.operator for specifier in pin.specifier] == ["=="], str(pin)
        assert "*" not in str(pin.specifier), str(pin)


@pytest.mark.parametrize("python", PYTHONS)
def test_requirements_satisfy_every_declared_dependency(python):
    pins = locked(python)
    assert pins.keys() >= STACK
    for requirement in declared():
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not pinned for Python {python}: make lock"
        (version,) = (specifier.version for specifier in pin.specifier)
        assert requirement.specifier.contains(version), f"{pin} is not {requirement}: make lock"


def test_newer_pythons_get_a_newer_stack():
    def version(python, package):
        return str(locked(python)[package].specifier).removeprefix("==").split(".")

    for package in ("jax", "flax"):
        old, new = ([*map(int, version(python, package))] for python in ("3.11", "3.12"))
        assert old < new, f"{package} is the same on 3.11 and 3.12: one version is left untested"


def test_supported_pythons_are_the_same_everywhere():
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(20) if f"3.{minor}" in supported] == [*PYTHONS]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == [*PYTHONS]


def test_environment_takes_python_from_conda_and_the_stack_from_pip():
    environment, packages, pip = conda()
    assert environment["channels"][0] == "conda-forge"
    (python,) = (
        re.fullmatch(r"python\s*=+\s*([\d.]+)", item)
        for item in packages
        if item.startswith("python")
    )
    assert python and python[1] in PYTHONS
    assert "pip" in packages, "conda warns, and guesses, where pip is not named"
    assert {canonicalize_name(re.split(r"[\s=<>]", item)[0]) for item in packages} == {
        "python",
        "pip",
    }, "a package from conda-forge could displace one that requirements.txt pins"
    assert "-r requirements.txt" in pip
    (editable,) = (item for item in pip if item.startswith("-e "))
    extras = re.fullmatch(r"-e \.\[(.+)\]", editable)[1].split(",")
    # 0.6 GB that nobody gets without asking.
    assert set(extras) == set(PROJECT["optional-dependencies"]) - {"tpu-compile"}


@pytest.mark.parametrize("path", ["environment.yml", "requirements.txt", "requirements-tpu.txt"])
def test_no_registry_is_named(path):
    text = (ROOT / path).read_text()
    assert not re.search(
        r"https?:|file:|--(extra-)?index-url|--find-links|^[- ]*-[if] ", text, re.M
    )


def test_pyproject_names_no_registry():
    text = (ROOT / "pyproject.toml").read_text()
    urls = set(re.findall(r"\w+://[^\s\"']+", text))
    assert urls == set(PROJECT["urls"].values())
    assert not re.search(r"index-url|find-links|\[tool\.uv", text)


def test_help_lists_every_target():
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    shown = make("help").stdout
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  ")] == targets
    assert make().stdout == shown


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_make_refuses_a_python_that_does_not_work(python):
    tried = make("run", f"PYTHON={python}")
    assert tried.returncode == 2
    assert f"nnxlab needs Python 3.11, 3.12 or 3.13, but '{python}' is not there" in tried.stderr


def test_ci_and_workflow_run_the_documented_command():
    script = (ROOT / ".ci/run").read_text()
    assert re.search(r"^step make test$", script, re.M)
    assert re.search(r"^\s*step make test PYTHON=", script, re.M)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert "make test" in [step.get("run") for step in workflow["jobs"]["test"]["steps"]]


@pytest.mark.slow
def test_environment_pip_section_installs_into_a_clean_venv(tmp_path):
    """Like conda, from a file beside environment.yml, but of a checkout made of links."""
    checkout = tmp_path / "checkout with spaces"
    checkout.mkdir()
    for name in (
        "environment.yml",
        "requirements.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src",
    ):
        (checkout / name).symlink_to(ROOT / name)
    section = checkout / "condaenv.requirements.txt"
    section.write_text("\n".join(conda()[2]) + "\n")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"

    def run(*command):
        done = subprocess.run(
            [*map(str, command)], cwd=checkout, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, (
            f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    run(python, "-m", "pip", "install", "--quiet", "-r", section)
    run(python, "-m", "pip", "check")
    installed = run(
        python,
        "-c",
        "import importlib.metadata as m, nnxlab; print(nnxlab.__file__);"
        f"print(*(f'{{p}}=={{m.version(p)}}' for p in {sorted(STACK)}), sep='\\n')",
    ).splitlines()
    assert Path(installed[0]).resolve() == ROOT / "src/nnxlab/__init__.py"
    pins = locked("{}.{}".format(*sys.version_info))
    assert installed[1:] == [f"{name}{pins[name].specifier}" for name in sorted(STACK)]
    assert "usage" in run(tmp_path / "env/bin/nnxlab", "--help").lower()


def test_the_compilers_pins_move_nothing_that_is_installed_already():
    plain, tpu = (
        {line for line in (ROOT / name).read_text().splitlines() if "==" in line}
        for name in ("requirements.txt", "requirements-tpu.txt")
    )
    named = {re.split("[=;]", line)[0].strip() for line in plain}
    added = {re.split("[=;]", line)[0].strip() for line in tpu - plain}
    assert "libtpu" in added and not added & named
