import argparse
import json
import subprocess
import sys

import pytest

from nnxlab.rules import MAXTEXT_RULES, ShardingError
from nnxlab.scale import price_command


def _run(*options):
    parser = argparse.ArgumentParser()
    price_command.add_arguments(parser)
    return price_command.run(parser.parse_args(options))


def _json(capsys, *options):
    assert _run(*options, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_json_of_671b(capsys):
    found = _json(capsys, "--config", "deepseek3-671b", "--mesh", "fsdp=512")
    assert {
        "config",
        "mesh",
        "chips",
        "parameters",
        "parameters_without_routing_bias",
        "fixed",
        "broken",
        "smallest_slice",
    } <= set(found)
    assert found["config"] == "deepseek3-671b" and found["topology"] is None
    assert found["parameters"] == 671_026_419_200
    assert found["broken"]["total_bytes_per_chip"] > 6 * found["fixed"]["total_bytes_per_chip"]


@pytest.mark.parametrize("mesh", ["fsdp=64,expert=8", "fsdp=128,tensor=4"])
def test_expert_and_tensor_meshes(capsys, mesh):
    found = _json(capsys, "--mesh", mesh, "--topology", "v5p:8x8x8")
    assert found["chips"] == 512 and found["fixed"]["hbm_share"] < 0.25
    experts = found["broken"]["by_group"]["experts"]["parameter_bytes_per_chip"]
    factor = experts / found["fixed"]["by_group"]["experts"]["parameter_bytes_per_chip"]
    assert factor == (8 if "expert" in mesh else 1)


def test_options_reach_the_price(capsys):
    plain = _json(capsys, "--config", "tiny", "--mesh", "fsdp=8")
    half = _json(capsys, "--config", "tiny", "--mesh", "fsdp=8", "--weight-dtype", "bfloat16")
    assert 2 * half["fixed"]["total_bytes_per_chip"] == plain["fixed"]["total_bytes_per_chip"]
    mtp = _json(capsys, "--config", "tiny", "--mesh", "fsdp=8", "--mtp", "1")
    assert (plain["parameters"], mtp["parameters"]) == (33_706_448, 34_005_776)


def test_json_and_plot_go_into_files(tmp_path, capsys):
    files = tmp_path / "price.json", tmp_path / "price.png"
    options = ("--config", "tiny", "--mesh", "fsdp=8", "--topology", "cpu:8")
    assert _run(*options, "--json", str(files[0]), "--plot", str(files[1])) == 0
    assert "Bytes a chip" in capsys.readouterr().out
    found = json.loads(files[0].read_text())
    assert found["topology"] == "cpu:8" and "hbm_share" not in found["fixed"]
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_rules_from_a_file(tmp_path, capsys):
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(MAXTEXT_RULES))
    options = ("--config", "tiny", "--mesh", "fsdp=8")
    found, plain = _json(capsys, *options, "--rules", str(file)), _json(capsys, *options)
    assert found.pop("rules") == str(file) and plain.pop("rules") == "MaxText 0.2.4"
    assert found == plain
    file.write_text(json.dumps([[name, []] for name, _ in MAXTEXT_RULES] + [["embed", "fsdp"]]))
    with pytest.raises(ShardingError, match="mesh axis 'tensor' is in no rule"):
        _run("--config", "tiny", "--mesh", "fsdp=4,tensor=2", "--rules", str(file))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topology", "v5p:4x4x4"], "v5p:4x4x4 has 64 chips and mesh fsdp=512 needs 512"),
        (["--topology", "v5q:8x8x8"], "unknown chip 'v5q'"),
        (["--mesh", "fsdp"], "is not AXIS=SIZE"),
        (["--mesh", "fsdp=1024"], "512 is not divisible by 1024"),
        (["--mesh", "model=8"], "mesh axis 'model' is in no rule"),
        (["--config", "huge"], "unknown config 'huge'; known: small"),
        (["--mtp", "-1"], "mtp_num_layers=-1 must be at least 0"),
        (["--weight-dtype", "int8"], "'int8' is none of float32, bfloat16"),
    ],
)
def test_bad_input_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        _run(*options)


def test_a_missing_rules_file_is_said(tmp_path):
    with pytest.raises(OSError, match="none.json"):
        _run("--rules", str(tmp_path / "none.json"))


def test_the_module_is_light_to_import():
    program = (
        "import sys, nnxlab.scale.price_command\n"
        "print([name for name in ('jax', 'flax', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert price_command.HELP and price_command.EXAMPLE.startswith("nnxlab price ")
