"""The finished steps of a run, on disk as soon as they are finished."""

import csv
import json
import os
from pathlib import Path
from typing import TextIO


class Record:
    """Keeps every step and writes it at once, so that nothing finished is lost.

    Args:
      head: What the run is: ``cell``, ``broken``, ``config`` and the like.
      json_path: A JSON file, replaced as a whole after each step.
      csv_path: A CSV file, a line added after each step.
    """

    def __init__(self, head: dict, json_path: Path | None = None, csv_path: Path | None = None):
        self.head, self.steps = head, []
        self._json, self._csv_path, self._csv = json_path, csv_path, None

    def add(self, row: dict[str, float]) -> None:
        """One more finished step, with ``step`` and its figures."""
        self.steps.append(row)
        if self._json:
            beside = self._json.with_name(self._json.name + ".part")
            beside.write_text(self.text())
            os.replace(beside, self._json)
        if self._csv_path:
            self._csv = self._csv or self._csv_path.open("w", newline="")
            self._write_csv(self._csv, row)

    def text(self) -> str:
        """The whole record as JSON."""
        return json.dumps(self.head | {"steps": self.steps}, indent=1)

    def close(self) -> None:
        """Closes the CSV file, if there is one."""
        if self._csv:
            self._csv.close()
            self._csv = None

    def _write_csv(self, file: TextIO, row: dict[str, float]) -> None:
        writer = csv.DictWriter(file, list(row))
        if len(self.steps) == 1:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
