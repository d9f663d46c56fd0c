import json
import os
import subprocess
import sys

import pytest

from nnxlab import cli, reference


def _run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "nnxlab", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )


def test_help_is_quick_and_names_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for command in ("verify", "parity", "run", *cli.MODULES):
        assert command in shown


def test_help_imports_no_jax():
    code = "import sys, nnxlab.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("command", ["verify", "parity", "run", *cli.MODULES])
def test_every_command_has_an_example_in_its_help(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert f"example: nnxlab {command}" in capsys.readouterr().out


def test_verify_prints_a_table_and_exits_0(capsys):
    assert cli.main(["verify", "--case", "scan-axis", "--config", "small"]) == 0
    captured = capsys.readouterr()
    assert "PASS" in captured.out and "scan-axis: PASS" in captured.err


def test_verify_json_is_json_and_nothing_else(capsys):
    assert cli.main(["verify", "--case", "scan-axis", "--config", "tiny", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert case["evidence"]["unsharded_elements_broken"] == 3_506_640


def test_verify_exits_1_where_a_claim_does_not_hold(monkeypatch, capsys):
    from nnxlab.cases import scan_axis

    monkeypatch.setattr(scan_axis, "FIXED", scan_axis.BROKEN)
    assert cli.main(["verify", "--case", "scan-axis", "--config", "small"]) == 1
    assert "scan-axis: FAIL: no variable is renamed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--case", "scan"], "unknown case 'scan'"),
        (["verify", "--config", "huge"], "unknown config 'huge'"),
        (["parity", "none.npz"], "none.npz: no such file"),
        (["run", "--notebooks", "nowhere"], "no notebooks in"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(arguments, message, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err.replace("\n", " ") and not captured.out


def test_one_device_is_told_what_to_set():
    done = _run("verify", "--case", "scan-axis", JAX_NUM_CPU_DEVICES="1")
    assert done.returncode == 2
    assert "needs 8 devices and jax has 1 cpu" in done.stderr
    assert "JAX_NUM_CPU_DEVICES=8" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_parity_says_equal_and_past_a_tolerance_exits_1(capsys):
    dump = str(reference.SMALL_DUMP)
    assert cli.main(["parity", dump, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["equal"] and len(result["rows"]) == 55
    assert cli.main(["parity", dump, "--tolerance", "1e-12"]) == 1
    assert "PAST 1e-12" in capsys.readouterr().out


def test_ctrl_c_ends_without_a_traceback(monkeypatch, capsys):
    from nnxlab import verdict

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(verdict, "verify", interrupted)
    assert cli.main(["verify"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
