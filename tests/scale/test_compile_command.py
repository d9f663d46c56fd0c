import json

import pytest

from nnxlab import cli
from nnxlab.scale import aot, compile_command, program

FIXED = {
    "parameter_bytes_per_chip": 2**20,
    **{f"{part}_bytes": 2**21 for part in ("argument", "output", "alias", "temp", "code", "peak")},
    "hbm_share": 0.125,
    "collectives": {"all-gather": {"count": 3, "bytes": 2**22}},
    "flops": 5e9,
    "compile_seconds": 1.0,
}
BROKEN = {"parameter_bytes_per_chip": 2**30, "error": "RESOURCE_EXHAUSTED: no room"}


@pytest.fixture
def invented(monkeypatch):
    """No compiling: a sound step that fits and a broken one that does not."""
    asked = []

    def compiled(step, rows, length, hbm_bytes=None, *, forward=False):
        asked.append((rows, length, hbm_bytes, forward))
        path = "decoder.dense_layers.mlp.wi_0.kernel"
        return FIXED if step.state["params"][path].sharding.spec[0] == "fsdp" else BROKEN

    monkeypatch.setattr(aot, "compiled", compiled)
    return asked


LINE = ["compile", "--topology", "cpu:8", "--config", "small"]


def test_fixed_and_broken_stand_side_by_side(invented, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert cli.main([*LINE, "--broken", "scan-axis"]) == 0
    shown = capsys.readouterr()
    assert "small nnx_mtp, train step, on cpu:8 (fsdp=8), 8 rows of 128 tokens" in shown.out
    for part in ("12.50%", "3 (4.0 MiB)", "RESOURCE_EXHAUSTED: no room", "1,024.0"):
        assert part in shown.out
    assert "compiling broken" in shown.err


def test_json_has_the_promised_keys(invented, capsys):
    assert cli.main([*LINE, "--broken", "scan-axis", "--forward", "--batch", "16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [report[key] for key in ("topology", "config", "cell")] == ["cpu:8", "small", "nnx_mtp"]
    assert report["fixed"] == FIXED and report["broken"] == BROKEN
    assert invented == [(16, 128, None, True)] * 2


def test_without_bugs_there_is_one_column(invented, tmp_path):
    assert cli.main([*LINE, "--json", str(tmp_path / "one.json")]) == 0
    report = json.loads((tmp_path / "one.json").read_text())
    assert "broken" not in report
    assert list(compile_command.table(report).columns) == ["", "fixed"]


def test_the_matrix_is_written_as_the_stored_table_is(monkeypatch, capsys):
    monkeypatch.setattr(program, "MATRIX", (program.Program(topology="cpu:8"),))
    monkeypatch.setattr(program, "report", lambda asked, say: {"topology": asked.topology})
    monkeypatch.setattr(program, "made_on", lambda: "a compiler")
    assert cli.main(["compile", "--matrix"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"made_on": "a compiler", "reports": [{"topology": "cpu:8"}]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--topology", "v9:2x2"], "unknown chip 'v9'; known: v4, v5e, v5p, v6e, cpu"),
        (["--topology", "cpu:8", "--mesh", "fsdp=2"], "mesh fsdp=2 has 2 chips, cpu:8 has 8"),
        (["--topology", "cpu:8", "--config", "none"], "unknown config 'none'"),
        (["--topology", "cpu:8", "--broken", "x"], "unknown bug 'x'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line, said, capsys):
    assert cli.main(["compile", *line]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
