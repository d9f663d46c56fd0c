"""Running the notebooks from the command line, each with a line of progress."""

from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TIMEOUT = 600  # seconds a cell may take


class NotebookError(RuntimeError):
    """A notebook could not be found or did not run to its end."""


def find(folder: Path, only: str = "", *, scripts: bool = False) -> list[Path]:
    """The notebooks in ``folder`` whose name contains ``only``, in order.

    Args:
      folder: Where.
      only: Part of a name; all if empty.
      scripts: Take every script for a notebook, also where that was never written.

    Raises:
      NotebookError: There are none, or none of that name.
    """
    pattern = "[0-9]*.py" if scripts else "*.ipynb"
    found = sorted(path.with_suffix(".ipynb") for path in folder.glob(pattern))
    if not found:
        raise NotebookError(
            f"no notebooks in {folder.resolve()}: run this in the checkout, or pass --notebooks DIR"
        )
    chosen = [path for path in found if only in path.stem]
    if not chosen:
        there = ", ".join(path.stem for path in found)
        raise NotebookError(f"no notebook has {only!r} in its name; there are {there}")
    return chosen


def from_script(path: Path) -> nbformat.NotebookNode:
    """The notebook at ``path`` as its script (``py:percent``, beside it) has it, not executed.

    Raises:
      NotebookError: There is no script.
    """
    script = path.with_suffix(".py")
    if not script.exists():
        raise NotebookError(f"{script}: no such file; a notebook's text is kept in its script")
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata.pop("jupytext", None)
    return notebook


def run(path: Path, out: Path, *, from_its_script: bool = False) -> Iterator[tuple[int, int]]:
    """Executes the notebook at ``path``, from its own folder, and writes it into ``out``.

    Whatever happens, what was executed is written.

    Args:
      path: The notebook.
      out: The folder for the executed one.
      from_its_script: Whether to take the text from the script beside it.

    Yields:
      Cells done and cells in all, after each.

    Raises:
      NotebookError: A cell raised; names the notebook and the cell, with the error.
    """
    notebook = from_script(path) if from_its_script else nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": path.parent}},
        extra_arguments=["--log-level=40"],  # the kernel's own advice is not the reader's business
    )
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with client.setup_kernel():
            for done, index in enumerate(code):
                yield done, len(code)
                client.execute_cell(notebook.cells[index], index, execution_count=done + 1)
    except CellExecutionError as error:
        raise NotebookError(f"{path.name}, cell {index + 1}: {error}") from error
    finally:
        _settle(notebook)
        nbformat.write(notebook, out / path.name)
    yield len(code), len(code)


def _settle(notebook: nbformat.NotebookNode) -> None:
    """Removes what differs between runs and machines: times, versions, paths in tracebacks."""
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = list(_joined(cell.outputs))
        for output in cell.outputs:
            if output.output_type == "error":
                output.traceback = [f"{output.ename}: {output.evalue}"]


def _joined(outputs: list) -> Iterator[nbformat.NotebookNode]:
    """``outputs`` with neighbouring texts of one stream made one: how they split is chance."""
    last = None
    for output in outputs:
        if last is not None and last.get("name") == output.get("name") == "stdout":
            last.text += output.text
            continue
        last = output
        yield output
