"""The PR's test matrix: each cell with the bugs in it, with each one mended in turn, and sound."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from nnxlab.cases import mtp_loss, qwix_targets, scan_axis
from nnxlab.cases.finding import Claim
from nnxlab.rules import ShardingError
from nnxlab.runs import loop
from nnxlab.runs.cells import BUGS
from nnxlab.runs.setup import Setup

# In the quantized NNX cell each bug hides the next one; so they are mended one by one.
LADDER: dict[str, tuple[tuple[str, ...], ...]] = {
    "linen_mtp": (BUGS, ()),
    "linen_mtp_qwix": (BUGS, ()),
    "nnx_mtp": (BUGS, ()),
    "nnx_mtp_qwix": (BUGS, (mtp_loss.NAME, scan_axis.NAME), (mtp_loss.NAME,), ()),
}
COMPILED_RUNS = 6  # of the ten rungs: two raise before, and Linen's two are one program each
# Largest relative difference of loss and mtp_loss between NNX and Linen over a run. Both compute
# the same operations, but XLA fuses and sums them in another order; in bfloat16 (8 bits of
# mantissa) and fp8 (3 bits) a last bit that differs can send a token to another expert.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "quantized": 1e-2}
COMPARED = ("loss", "mtp_loss")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes:
      cell: Of ``cells.CELLS``.
      broken: The bugs that were in it.
      steps: One row a finished step, with every figure of ``step.FIGURES``.
      error: The first clause of what it raised instead.
    """

    cell: str
    broken: tuple[str, ...]
    steps: pd.DataFrame
    error: str | None = None


def outcome(
    cell: str, broken: Sequence[str], setup: Setup, show: Callable[[dict], None] | None = None
) -> Outcome:
    """Trains ``cell`` with the bugs ``broken``; a bug that raises is an outcome too.

    Args:
      cell: Of ``cells.CELLS``.
      broken: Of ``cells.BUGS``.
      setup: All else.
      show: Called with the figures of each finished step.

    Raises:
      Whatever is not due to a bug that was put in.
    """
    broken, rows = tuple(broken), []
    try:
        run = setup.prepare(setup.build(cell, broken))
    except (TypeError, ShardingError) as error:
        if not _expected(error, broken):
            raise
        line = f"{type(error).__name__}: {str(error).split(': ')[0]}"
        return Outcome(cell, broken, pd.DataFrame(), line)
    for row in loop.rows(run, setup.batches(), setup.steps):
        rows.append(row)
        if show:
            show(row)
    return Outcome(cell, broken, pd.DataFrame(rows))


def run(setup: Setup, show: Callable[[dict], None] | None = None) -> Iterator[Outcome]:
    """Every rung of ``LADDER``, Linen first; yields each outcome as soon as it is there.

    Linen has no place to put the bugs in, so the program with them is the program without, and
    runs once.
    """
    for cell, rungs in LADDER.items():
        done = None
        for broken in rungs:
            if done is None or not cell.startswith("linen"):
                done = outcome(cell, broken, setup, show)
            yield dataclasses.replace(done, broken=broken)


def frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """All figures, one row per step, cell and set of bugs."""
    parts = [o.steps.assign(cell=o.cell, broken=",".join(o.broken)) for o in outcomes]
    whole = pd.concat([part for part in parts if len(part)], ignore_index=True)
    first = ["cell", "broken", "step"]
    return whole[first + [column for column in whole.columns if column not in first]]


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row a run: what happened, mtp_loss at the first and last step, and how far from Linen.

    The last column is the largest relative difference of ``loss`` and ``mtp_loss`` at any step
    from those of the sound Linen run of the same kind; None for a run that raised.
    """
    return pd.DataFrame(
        {
            "cell": o.cell,
            "bugs in it": ", ".join(o.broken) or "none",
            "verdict": verdict(o),
            "mtp_loss first": _at(o, 0),
            "mtp_loss last": _at(o, -1),
            "from Linen": difference(o, _linen(o, outcomes)),
        }
        for o in outcomes
    )


def verdict(outcome: Outcome) -> str:
    """In a few words: raises, silently loses the MTP loss, or trains."""
    if outcome.error:
        return f"raises {outcome.error}"
    if (outcome.steps["mtp_loss"] == 0).any():
        zeros = int((outcome.steps["mtp_loss"] == 0).sum())
        return f"silent: mtp_loss is 0 at {zeros} of {len(outcome.steps)} steps"
    return "trains"


def difference(outcome: Outcome, other: Outcome) -> float | None:
    """The largest relative difference of loss and mtp_loss at any step; None if one raised."""
    if outcome.error or other.error:
        return None
    ours, theirs = (o.steps[list(COMPARED)].to_numpy() for o in (outcome, other))
    return float((abs(ours - theirs) / abs(theirs)).max())


def claims(outcomes: Sequence[Outcome], setup: Setup) -> list[Claim]:
    """What the matrix must show: what each bug does, and that each cell is sound without."""
    by = {(o.cell, o.broken): o for o in outcomes}
    found = []
    for (cell, broken), o in by.items():
        text = f"{cell} with {', '.join(broken) or 'no bug'}"
        if not broken or cell.startswith("linen"):
            kind = "quantized" if cell.endswith("qwix") else setup.config.dtype
            limit, apart = TOLERANCE[kind], difference(o, _linen(o, outcomes))
            holds = verdict(o) == "trains" and apart is not None and apart <= limit
            found.append(Claim(f"{text}: trains, within {limit:g} of Linen", holds))
        elif cell.endswith("qwix") and qwix_targets.NAME in broken:
            found.append(Claim(f"{text}: raises TypeError", _raises(o, "TypeError")))
        elif cell.endswith("qwix") and scan_axis.NAME in broken:
            found.append(Claim(f"{text}: raises ShardingError", _raises(o, "ShardingError")))
        else:
            found.append(Claim(f"{text}: mtp_loss is 0, the total short by it", _short(o, by)))
    return found


def _expected(error: Exception, broken: tuple[str, ...]) -> bool:
    if isinstance(error, ShardingError):
        return scan_axis.NAME in broken
    return qwix_targets.NAME in broken and "roll requires ndarray" in str(error)


def _linen(outcome: Outcome, outcomes: Sequence[Outcome]) -> Outcome:
    cell = "linen_mtp_qwix" if outcome.cell.endswith("qwix") else "linen_mtp"
    return next(o for o in outcomes if o.cell == cell and not o.broken)


def _at(outcome: Outcome, step: int) -> float | None:
    return None if outcome.error else float(outcome.steps["mtp_loss"].iloc[step])


def _raises(outcome: Outcome, name: str) -> bool:
    return (outcome.error or "").startswith(f"{name}:")


def _short(outcome: Outcome, by: dict) -> bool:
    sound = by[outcome.cell, ()].steps.iloc[0]
    if outcome.error or (outcome.steps["mtp_loss"] != 0).any():
        return False
    missing = sound["loss"] - outcome.steps["loss"].iloc[0]  # before any update: the same weights
    return abs(missing - sound["mtp_loss"]) <= 1e-5 * sound["loss"]
