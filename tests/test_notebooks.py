import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

from nnxlab import notebooks

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def _code(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def test_the_notebooks_are_there():
    assert [path.stem[0] for path in PATHS] == [str(n) for n in range(len(PATHS))]
    assert len(PATHS) >= 4


@each
def test_notebook_and_script_agree(path):
    stored, script = nbformat.read(path, 4), notebooks.from_script(path)
    assert [(c.cell_type, c.source) for c in stored.cells] == [
        (c.cell_type, c.source) for c in script.cells
    ]
    assert [c.metadata.get("tags") for c in stored.cells] == [
        c.metadata.get("tags") for c in script.cells
    ]


@each
def test_every_cell_was_run_in_order_and_nothing_leaks(path):
    cells = _code(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.get("name") == "stderr"]
    text = path.read_text()
    for secret in ("/home/", "/Users/", "/tmp/", str(ROOT), "site-packages", "0x7f"):
        assert secret not in text


@each
def test_errors_are_deliberate_and_pictures_are_not_compared(path):
    for cell in _code(path):
        tags = cell.metadata.get("tags", [])
        for output in cell.outputs:
            assert (output.output_type == "error") == ("raises-exception" in tags) or (
                output.output_type != "error"
            )
            if "image/png" in output.get("data", {}):
                assert "nbval-ignore-output" in tags


@each
def test_a_notebook_opens_with_badge_claim_time_devices_and_verdict(path):
    first = nbformat.read(path, 4).cells[0].source
    repository, revision = SOURCE.split("/tree/")
    where = repository.removeprefix("https://github.com/")
    assert f"colab/github/{where}" not in first  # the badge's address has another form
    assert f"research.google.com/github/{where}/blob/{revision}/notebooks/{path.name}" in first
    for word in ("**Claim.**", "| takes | on |", "**Devices.**", "**Verdict to expect.**"):
        assert word in first


@each
def test_cells_are_short_and_have_a_picture_among_them(path):
    cells = _code(path)
    assert max(len(cell.source.splitlines()) for cell in cells) <= 25
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs)


def test_all_install_cells_are_one():
    assert len({_code(path)[0].source for path in PATHS}) == 1
    assert f'SOURCE = "{SOURCE}"' in _code(PATHS[0])[0].source


@pytest.fixture
def install(monkeypatch):
    """Runs the install cell as if nnxlab were missing; gives the pip commands it would run."""
    commands = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))

    def run():
        exec(_code(PATHS[0])[0].source, {})
        return commands

    return run


def test_the_install_cell_does_nothing_where_nnxlab_is(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("installs"))
    exec(_code(PATHS[0])[0].source, {})


def test_the_install_cell_installs_the_pinned_set_before_jax(install, monkeypatch):
    monkeypatch.delitem(sys.modules, "jax")
    (command,) = install()
    repository, revision = SOURCE.split("/tree/")
    assert f"nnxlab @ git+{repository}@{revision}" in command
    pins = command[command.index("-c") + 1]
    assert pins.endswith(f"/{revision}/requirements.txt") and "raw.githubusercontent" in pins


def test_the_install_cell_asks_for_a_restart_where_jax_is_loaded(install, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", object())
    with pytest.raises(RuntimeError, match="restart the session"):
        install()


def test_a_failing_cell_is_named_and_what_ran_is_kept(tmp_path):
    new = nbformat.v4
    broken = new.new_notebook(cells=[new.new_code_cell("x = 1"), new.new_code_cell("1 / 0")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(notebooks.NotebookError, match=r"broken.ipynb, cell 2: (?s:.)*ZeroDivision"):
        list(notebooks.run(tmp_path / "broken.ipynb", tmp_path / "out"))
    (first, second) = _code(tmp_path / "out" / "broken.ipynb")
    assert (first.execution_count, second.execution_count) == (1, 2)
    assert second.outputs[0].traceback == ["ZeroDivisionError: division by zero"]


def test_a_folder_without_notebooks_is_named(tmp_path):
    with pytest.raises(notebooks.NotebookError, match="no notebooks in"):
        notebooks.find(tmp_path)
    with pytest.raises(notebooks.NotebookError, match="no such file"):
        notebooks.from_script(tmp_path / "a.ipynb")


def test_a_name_that_no_notebook_has_is_refused(tmp_path):
    (tmp_path / "1_first.py").touch()
    assert notebooks.find(tmp_path, "first", scripts=True) == [tmp_path / "1_first.ipynb"]
    with pytest.raises(notebooks.NotebookError, match="no notebook has 'third'.*are 1_first"):
        notebooks.find(tmp_path, "third", scripts=True)
