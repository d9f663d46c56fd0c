import json

import pytest

from nnxlab.chips import CHIPS
from nnxlab.model.config import config_named
from nnxlab.scale import price, price_report, slices

AXES = {"fsdp": 512}
SIZES = tuple(sorted({size for chip in CHIPS.values() for size in chip.slices}))
BYTES = {f"{kind}_bytes_per_chip" for kind in ("parameter", "gradient", "optimizer", "total")}
HEAD = {"config": "deepseek3-671b", "mtp_num_layers": 0, "weight_dtype": "float32"}


def _figures(chip=None, axes=AXES):
    weights = price.weights(config_named("deepseek3-671b"))
    table, curve = price.price(weights, axes), slices.curve(weights, axes, SIZES)
    return price_report.figures(weights, axes, table, curve, chip)


def test_the_figures_are_plain_json_and_consistent():
    found = json.loads(json.dumps(_figures()))
    assert found["parameters"] == 671_026_419_200
    assert found["parameters_without_routing_bias"] == 671_026_404_352
    assert sum(found["parameters_by_group"].values()) == found["parameters"]
    assert found["mesh"] == AXES and found["chips"] == 512
    for state in ("fixed", "broken"):
        assert set(found[state]) == BYTES | {"by_group"}
        for key in BYTES:
            groups = found[state]["by_group"].values()
            assert sum(group[key] for group in groups) == found[state][key]
    assert set(found["smallest_slice"]) == set(CHIPS)
    assert found["smallest_slice"]["v5p"]["fixed"] == {"chips": 128, "mesh": {"fsdp": 128}}
    assert found["smallest_slice"]["v5e"] == {"fixed": None, "broken": None}


def test_shares_are_of_the_chips_hbm():
    found = _figures(CHIPS["v5p"])
    assert found["hbm_bytes_per_chip"] == 95 * 2**30
    for state in ("fixed", "broken"):
        share = found[state]["total_bytes_per_chip"] / (95 * 2**30)
        assert found[state]["hbm_share"] == pytest.approx(share)
    assert found["fixed"]["hbm_share"] < 1 < found["broken"]["hbm_share"]


def test_the_tables_show_the_figures(capsys):
    price_report.show(HEAD | {"topology": "v5p:8x8x8"} | _figures(CHIPS["v5p"]))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "671,026,419,200 parameters, 671,026,404,352 without the routing biases",
        "experts 4.8 GiB 4.8 GiB 1.0",
        "total 19.5 GiB 121.4 GiB 6.2",
        "share of v5p's HBM 20.6% 127.8%",
        "v5p 95.0 GiB 128: fsdp=128 1024: fsdp=512,tensor=2",
        "v5e 16.0 GiB none up to 256 none up to 256",
    ):
        assert line in lines
    assert lines[-1].startswith("Not counted: activations.")


def test_without_a_chip_there_is_no_share(capsys):
    price_report.show(HEAD | {"topology": None} | _figures())
    assert "share of" not in capsys.readouterr().out
