"""The finished steps of a run, on disk as soon as they are finished."""

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path


class Record:
    """Keeps every step and writes it at once, so that nothing finished is lost.

    Args:
      head: What the run is: ``cell``, ``broken``, ``config`` and the like.
      json_path: A JSON file, replaced as a whole after each step.
      csv_path: A CSV file, a line added after each step.
      resumed_at: The first step that is to come; what the files hold of earlier ones stays.

    Raises:
      ValueError: A file that is to be gone on with is no record of a run; both are one file.
    """

    def __init__(
        self,
        head: dict,
        json_path: Path | None = None,
        csv_path: Path | None = None,
        resumed_at: int = 0,
    ):
        if json_path and csv_path and json_path.resolve() == csv_path.resolve():
            raise ValueError(f"JSON and CSV would both go into {csv_path}; name two files")
        self.head, self.steps = head, []
        self._json, self._csv_path, self._csv = json_path, csv_path, None
        self._before_json = _before(json_path, resumed_at, _json_rows)
        self._before_csv = _before(csv_path, resumed_at, _csv_rows)

    def add(self, row: dict[str, float]) -> None:
        """One more finished step, with ``step`` and its figures."""
        self.steps.append(row)
        if self._json:
            whole = self.head | {"steps": self._before_json + self.steps}
            _replace(self._json, json.dumps(whole, indent=1))
        if self._csv_path:
            self._add_csv(row)

    def text(self) -> str:
        """This run's steps as JSON."""
        return json.dumps(self.head | {"steps": self.steps}, indent=1)

    def close(self) -> None:
        """Closes the CSV file, if there is one."""
        if self._csv:
            self._csv.close()
            self._csv = None

    def _add_csv(self, row: dict[str, float]) -> None:
        if not self._csv:
            head = [row.keys(), *(before.values() for before in self._before_csv)]
            _replace(self._csv_path, "".join(f"{','.join(map(str, line))}\n" for line in head))
            self._csv = self._csv_path.open("a", newline="")
        csv.writer(self._csv, lineterminator="\n").writerow(row.values())
        self._csv.flush()


def _before(path: Path | None, resumed_at: int, read) -> list[dict]:
    if path is None or not resumed_at or not path.exists():
        return []
    try:
        return [row for row in read(path) if int(row["step"]) < resumed_at]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of a run; name another file") from error


def _json_rows(path: Path) -> Sequence[dict]:
    return json.loads(path.read_text())["steps"]


def _csv_rows(path: Path) -> Sequence[dict]:
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames and "step" not in rows.fieldnames:
            raise KeyError("step")
        return list(rows)


def _replace(path: Path, text: str) -> None:
    path = path.resolve()  # what a link points to is written, and the link stays
    beside = path.with_name(path.name + ".part")
    beside.write_text(text)
    os.replace(beside, path)
