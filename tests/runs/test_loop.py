import numpy as np
import pytest

from nnxlab.model import config
from nnxlab.runs import cells, data, loop
from nnxlab.runs.step import FIGURES
from nnxlab.sharding import ShardingError

SMALL = config.DEEPSEEK3_SMALL.replace(num_decoder_layers=2, first_num_dense_layers=1)


def _run(mesh, name="nnx_mtp", broken=(), steps=4, **options):
    cell = cells.build(name, SMALL, broken)
    run = loop.prepare(cell, mesh, steps=steps, quick=True, learning_rate=1e-3, **options)
    return run, list(loop.rows(run, data.text(cell.config, 8, 16, 0), steps))


@pytest.fixture(scope="module")
def nnx_run(mesh):
    return _run(mesh)


def test_the_step_is_traced_once(nnx_run):
    run, rows = nnx_run
    assert run.traces == 1 and [row["step"] for row in rows] == [0, 1, 2, 3]


def test_every_step_has_every_figure(nnx_run):
    for row in nnx_run[1]:
        assert set(FIGURES) | {"step", "seconds", "tokens_per_second"} == set(row)
        assert np.isfinite(list(row.values())).all()
        assert row["loss"] == pytest.approx(row["lm_loss"] + row["mtp_loss"], rel=1e-6)


def test_the_state_is_sharded_by_the_snapshot(nnx_run, mesh):
    run, _ = nnx_run
    embedding = run.state["params"]["token_embedder.embedding"]
    assert embedding.addressable_shards[0].data.shape == (256, 4)
    momentum = run.state["opt"][1][0].mu["token_embedder.embedding"]
    assert momentum.sharding == embedding.sharding


@pytest.mark.slow
def test_the_broken_run_has_no_mtp_loss_at_any_step(nnx_run, mesh):
    for row, sound in zip(_run(mesh, broken=["mtp-loss"])[1], nnx_run[1], strict=True):
        assert row["mtp_loss"] == row["mtp_grad_norm"] == 0.0
        assert row["loss"] == row["lm_loss"] and sound["mtp_loss"] > 0


def test_bug_3_is_fatal_where_the_constructor_quantizes(mesh):
    cell = cells.build("nnx_mtp_qwix", SMALL, ["scan-axis"])
    with pytest.raises(ShardingError, match="of the parameters are replicated, more than 2.00%"):
        loop.prepare(cell, mesh, steps=1)
