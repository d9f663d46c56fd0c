"""Running the notebooks from the command line, each with a line of progress."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TIMEOUT = 600  # seconds a cell may take


class NotebookError(RuntimeError):
    """A notebook could not be found or did not run to its end."""


def find(folder: Path) -> list[Path]:
    """The notebooks in ``folder``, in order.

    Raises:
      NotebookError: There are none.
    """
    found = sorted(folder.glob("*.ipynb"))
    if not found:
        raise NotebookError(
            f"no notebooks in {folder.resolve()}: run this in the checkout, or pass --notebooks DIR"
        )
    return found


def run(path: Path, out: Path) -> Iterator[tuple[int, int]]:
    """Executes the notebook at ``path``, from its own folder, and writes it into ``out``.

    Whatever happens, what was executed is written.

    Yields:
      Cells done and cells in all, after each.

    Raises:
      NotebookError: A cell raised; names the notebook and the cell, with the error.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": path.parent}}
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
    """Removes what differs from run to run: times, and the language's version."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)

