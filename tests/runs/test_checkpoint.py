import shutil

import jax
import numpy as np
import pytest

from nnxlab import devices
from nnxlab.model import config
from nnxlab.runs import cells, data, loop
from nnxlab.runs.checkpoint import CheckpointError, Checkpoints

SMALL = config.DEEPSEEK3_SMALL.replace(num_decoder_layers=2, first_num_dense_layers=1)


def _prepare(mesh, broken=()):
    cell = cells.build("nnx_mtp", SMALL, broken)
    return loop.prepare(cell, mesh, steps=4, quick=True, learning_rate=1e-3)


def _batches():
    return data.text(SMALL, 8, 16, 0)


def _equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(mesh, tmp_path):
    run = _prepare(mesh)
    saves = Checkpoints(tmp_path, run, every=2)
    rows = []
    for row in loop.rows(run, _batches(), 4):
        rows.append(row)
        if row["step"] == 1:
            saves.save()
    resumed = _prepare(mesh)
    assert Checkpoints(tmp_path, resumed).restore() == 2
    after = list(loop.rows(resumed, _batches(), 4))
    assert [r["loss"] for r in after] == [r["loss"] for r in rows[2:]]
    assert _equal(run.state, resumed.state)


def test_a_save_is_restored_onto_another_mesh(mesh, tmp_path):
    run, other = _prepare(mesh), _prepare(devices.mesh("fsdp=4,tensor=2"))
    Checkpoints(tmp_path, run, every=1).save()
    before = other.state["params"]["token_embedder.embedding"].sharding
    assert Checkpoints(tmp_path, other).restore() == 0
    assert _equal(run.state, other.state)
    assert other.state["params"]["token_embedder.embedding"].sharding == before


def test_a_checkpoint_with_corrupted_metadata_is_refused_with_its_paths(mesh, tmp_path):
    Checkpoints(tmp_path, _prepare(mesh, ["scan-axis"]), every=1).save()
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path, _prepare(mesh)).restore()
    text = str(caught.value)
    assert "29 weights are not those of this run" in text
    assert (
        "decoder.dense_layers.mlp.wi_0.kernel: saved ('dense_layers', 'layers', 'mlp'), "
        "here ('embed', 'dense_layers', 'mlp')" in text
    )


def test_a_run_of_other_settings_cannot_go_on(mesh, tmp_path):
    Checkpoints(tmp_path, _prepare(mesh), 1, {"steps": 4, "seed": 0, "data": "text"}).save()
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path, _prepare(mesh), 1, {"steps": 8, "seed": 1, "data": "text"}).restore()
    assert str(caught.value).splitlines()[1:] == [
        "its settings are others:",
        "  seed: saved 0, here 1",
        "  steps: saved 4, here 8",
    ]


def test_the_last_state_is_saved_even_if_it_is_not_time(mesh, tmp_path):
    run = _prepare(mesh)
    saves = Checkpoints(tmp_path, run, every=3)
    saves.save()
    for _ in loop.rows(run, _batches(), 2):
        assert not saves.save()
    assert saves.save(last=True) and saves.latest() == 2
    assert not saves.save(last=True)


@pytest.mark.parametrize("item", ["state", "settings", "names"])
def test_a_damaged_save_is_named_with_the_way_out(mesh, tmp_path, item):
    Checkpoints(tmp_path, _prepare(mesh), every=1).save()
    shutil.rmtree(tmp_path / "0" / item)
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*/0 \(.*move it away"):
        Checkpoints(tmp_path, _prepare(mesh)).restore()


def test_a_file_in_place_of_the_folder_is_said_at_once(mesh, tmp_path):
    path = tmp_path / "saves"
    path.touch()
    with pytest.raises(CheckpointError, match="saves: it is a file, not a folder"):
        Checkpoints(path, _prepare(mesh))


def test_an_empty_folder_has_nothing_to_resume(mesh, tmp_path):
    with pytest.raises(CheckpointError, match="no finished checkpoint in"):
        Checkpoints(tmp_path, _prepare(mesh)).restore()
