import pandas as pd
import pytest

from nnxlab.model import config
from nnxlab.rules import ShardingError
from nnxlab.runs import matrix
from nnxlab.runs.cells import BUGS
from nnxlab.runs.matrix import Outcome
from nnxlab.runs.setup import Setup

LAYERS = {"num_decoder_layers": 2, "first_num_dense_layers": 1, "mtp_num_layers": 1}
SMALL = config.DEEPSEEK3_SMALL.replace(**LAYERS)


def _setup(mesh, sizes=SMALL, **options):
    options = {"steps": 20, "length": 16, "learning_rate": 1e-3, "quick": True} | options
    return Setup(config=sizes, mesh=mesh, **options)


# The whole matrix, 20 steps of every cell, is what notebook 4 runs and asserts.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype", "quantization"),
    [("mtp", "bfloat16", "fp8_full"), ("mtp_qwix", "float32", "int8")],
)
def test_nnx_is_linen_in_bfloat16_and_in_int8_over_20_steps(mesh, kind, dtype, quantization):
    setup = _setup(mesh, SMALL.replace(dtype=dtype), quantization=quantization)
    ours, theirs = (matrix.outcome(f"{i}_{kind}", (), setup) for i in ("nnx", "linen"))
    limit = matrix.TOLERANCE["quantized" if kind.endswith("qwix") else dtype]
    assert len(ours.steps) == 20 and matrix.verdict(ours) == "trains"
    assert matrix.difference(ours, theirs) <= limit


def test_a_bug_that_raises_is_an_outcome(mesh):
    crash = matrix.outcome("nnx_mtp_qwix", BUGS, _setup(mesh))
    assert crash.error.startswith("TypeError: roll requires ndarray") and crash.steps.empty
    fatal = matrix.outcome("nnx_mtp_qwix", ["scan-axis"], _setup(mesh))
    assert fatal.error.startswith("ShardingError: ") and fatal.error.endswith("more than 2.00%")
    assert matrix.verdict(fatal) == f"raises {fatal.error}"
    assert matrix.difference(fatal, crash) is None


def test_what_no_bug_explains_is_raised(mesh, monkeypatch):
    def refuse(*_, **__):
        raise ShardingError("not of our making")

    monkeypatch.setattr(Setup, "prepare", refuse)
    with pytest.raises(ShardingError, match="not of our making"):
        matrix.outcome("nnx_mtp", ["mtp-loss"], _setup(mesh))


def _made(cell, broken, loss, mtp, error=None):
    steps = (
        pd.DataFrame({"step": range(len(loss)), "loss": loss, "mtp_loss": mtp})
        if error is None
        else pd.DataFrame()
    )
    return Outcome(cell, broken, steps, error)


def _invented():
    sound, without = ([3.0, 2.9], [0.5, 0.4]), ([2.5, 2.4], [0.0, 0.0])
    made = []
    for cell, rungs in matrix.LADDER.items():
        for broken in rungs:
            error = None
            if cell == "nnx_mtp_qwix" and "scan-axis" in broken:
                error = "TypeError: x" if "qwix-targets" in broken else "ShardingError: y"
            is_sound = not broken or cell.startswith("linen")
            made.append(_made(cell, broken, *(sound if is_sound else without), error))
    return made


def _failing(outcomes, mesh):
    return [c.text for c in matrix.claims(outcomes, _setup(mesh)) if not c.holds]


def test_the_frame_has_a_row_per_step_of_each_run_that_trained():
    frame = matrix.frame(_invented())
    assert len(frame) == 2 * sum(o.error is None for o in _invented())
    assert list(frame.columns[:2]) == ["cell", "broken"]


def test_the_table_says_what_became_of_each_run():
    table = matrix.table(_invented()).set_index(["cell", "bugs in it"])
    broken = table.loc[("nnx_mtp", "mtp-loss, qwix-targets, scan-axis")]
    assert broken["verdict"] == "silent: mtp_loss is 0 at 2 of 2 steps"
    assert broken["mtp_loss first"] == broken["mtp_loss last"] == 0.0
    assert table.loc[("nnx_mtp", "none"), "from Linen"] == 0.0


def test_the_claims_hold_for_what_the_bugs_do(mesh):
    assert _failing(_invented(), mesh) == []


@pytest.mark.parametrize(
    ("cell", "broken", "steps", "text"),
    [
        ("nnx_mtp", (), ([3.1, 2.9], [0.5, 0.4]), "nnx_mtp with no bug: trains"),
        ("nnx_mtp", (), ([2.5, 2.4], [0.0, 0.0]), "nnx_mtp with no bug: trains"),
        ("nnx_mtp", BUGS, ([2.5, 2.4], [0.0, 0.1]), "mtp_loss is 0"),
        ("nnx_mtp", BUGS, ([2.7, 2.4], [0.0, 0.0]), "the total short by it"),
        ("nnx_mtp_qwix", BUGS, ([2.5, 2.4], [0.0, 0.0]), "raises TypeError"),
        ("nnx_mtp_qwix", ("mtp-loss", "scan-axis"), ([2.5], [0.0]), "raises ShardingError"),
    ],
)
def test_each_claim_fails_where_it_should(mesh, cell, broken, steps, text):
    outcomes = [
        _made(cell, broken, *steps) if (o.cell, o.broken) == (cell, broken) else o
        for o in _invented()
    ]
    failing = _failing(outcomes, mesh)
    assert any(cell in claim and text in claim for claim in failing)
