import json
import signal
from pathlib import Path

import pandas as pd
import pytest

from nnxlab import printing


def test_a_table_shows_brackets_and_cuts_nothing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    printing.table(pd.DataFrame({"axes": ["['embed', 'mlp']"], "n": [3]}))
    assert "['embed', 'mlp']" in capsys.readouterr().out


def test_lines_are_literal_and_not_broken(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    printing.line("[red]not a colour[/red]")
    printing.error("[1, 2] " + "word " * 9)
    captured = capsys.readouterr()
    assert captured.out == "[red]not a colour[/red]\n" and captured.err.count("\n") == 1


def test_progress_goes_to_stderr(capsys):
    with printing.steps(2) as show:
        show({"loss": 1.0, "mtp_loss": 0.5, "tokens_per_second": 10.0})
    captured = capsys.readouterr()
    assert captured.out == "" and "loss 1.0000  mtp_loss 0.5000" in captured.err


def test_ctrl_c_waits_for_its_place_and_a_second_one_does_not():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), printing.interruptible() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        finished = "the step"
        check()
    assert finished and signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), printing.interruptible():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_report_goes_to_its_file_or_to_stdout(capsys, tmp_path):
    assert printing.report({"a": 1}, Path("-")) and json.loads(capsys.readouterr().out) == {"a": 1}
    assert not printing.report({"a": 1}, tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert capsys.readouterr().out == ""
