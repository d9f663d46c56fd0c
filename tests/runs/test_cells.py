import pytest

from nnxlab import sharding
from nnxlab.model import config
from nnxlab.runs import cells

SMALL = config.DEEPSEEK3_SMALL


def test_every_unknown_word_is_named_at_once():
    with pytest.raises(ValueError) as caught:
        cells.build("nnx", SMALL, ["mtp", "scan-axis"], "int4")
    for part in ("unknown cell 'nnx'", "unknown bug 'mtp'", "unknown quantization 'int4'"):
        assert part in str(caught.value)
    assert "scan-axis'" not in str(caught.value)


@pytest.mark.parametrize("name", cells.CELLS)
def test_all_cells_have_the_same_weights_and_logical_axes(name):
    cell, plain = cells.build(name, SMALL), cells.build("nnx_mtp", SMALL)
    assert cell.shapes == plain.shapes and len(cell.shapes) == 52
    assert cell.names == cell.names_after == plain.names


def test_an_mtp_layer_is_added_where_there_is_none():
    assert cells.build("nnx_mtp", SMALL).config.mtp_num_layers == 1
    two = SMALL.replace(mtp_num_layers=2)
    assert cells.build("linen_mtp", two).config.mtp_num_layers == 2


def test_bug_3_is_invisible_in_the_plain_cell_and_in_the_snapshot_of_the_quantized_one():
    plain = cells.build("nnx_mtp", SMALL, ["scan-axis"])
    assert plain.names == cells.build("nnx_mtp", SMALL).names
    moved = [path for path in plain.names if plain.names[path] != plain.names_after[path]]
    assert len(moved) == 29
    quantized = cells.build("nnx_mtp_qwix", SMALL, ["scan-axis"])
    assert len([p for p in moved if quantized.names[p] != plain.names[p]]) == 29


def test_bug_2_is_raised_by_the_quantized_cell_only():
    with pytest.raises(TypeError, match="roll requires ndarray"):
        cells.build("nnx_mtp_qwix", SMALL, ["qwix-targets"])
    cells.build("nnx_mtp", SMALL, ["qwix-targets"])
    cells.build("linen_mtp_qwix", SMALL, ["qwix-targets"])


def test_linen_refuses_a_scan_axis_it_cannot_have():
    with pytest.raises(ValueError, match="param_scan_axis=2: Linen stacks at 0 or 1 only"):
        cells.build("linen_mtp", SMALL.replace(param_scan_axis=2))


def test_a_quantized_cell_is_sharded_like_a_plain_one(mesh):
    shares = [
        sharding.unsharded(sharding.rows(cell.shapes, cell.names, mesh))["elements"]
        for cell in (cells.build("nnx_mtp", SMALL), cells.build("nnx_mtp_qwix", SMALL))
    ]
    assert shares[0] == shares[1]
