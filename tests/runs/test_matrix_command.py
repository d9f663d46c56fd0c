import json

import pandas as pd
import pytest

from nnxlab import cli
from nnxlab.runs import matrix


@pytest.fixture
def invented(monkeypatch):
    """The matrix without its training: every run is sound, which no bug would allow."""

    def run(setup, show=None):
        steps = pd.DataFrame({"step": [0], "loss": [2.0], "mtp_loss": [0.5]})
        for cell, rungs in matrix.LADDER.items():
            for broken in rungs:
                yield matrix.Outcome(cell, broken, steps)

    monkeypatch.setattr(matrix, "run", run)


def test_a_matrix_that_shows_no_bug_exits_1(invented, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["matrix"]) == 1
    shown = capsys.readouterr().out
    assert "PASS  nnx_mtp with no bug: trains, within 1e-05 of Linen" in shown
    assert "FAIL  nnx_mtp_qwix with mtp-loss, qwix-targets, scan-axis: raises TypeError" in shown


def test_json_and_csv_have_every_run(invented, tmp_path):
    line = ["matrix", "--json", str(tmp_path / "m.json"), "--csv", str(tmp_path / "m.csv")]
    assert cli.main(line) == 1
    report = json.loads((tmp_path / "m.json").read_text())
    assert len(report["runs"]) == len(report["claims"]) == 10
    assert report["runs"][0]["steps"] == [{"step": 0, "loss": 2.0, "mtp_loss": 0.5}]
    assert len(pd.read_csv(tmp_path / "m.csv")) == 10


def test_bad_input_is_one_line_and_exit_code_2(capsys):
    assert cli.main(["matrix", "--mesh", "fsdp"]) == 2
    assert "nnxlab matrix: mesh 'fsdp'" in capsys.readouterr().err
