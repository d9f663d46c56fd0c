"""``nnxlab matrix``: the PR's whole test matrix, with the bugs and without them."""

import argparse

from nnxlab.runs import options

HELP = "train every cell of the PR's matrix, with its bugs and without them"
EXAMPLE = "nnxlab matrix --config small --steps 20 --csv matrix.csv"


def run(arguments: argparse.Namespace) -> int:
    """Trains each cell with all bugs, each mended in turn, and none; prints the table or JSON.

    Returns:
      0 if every claim about the matrix holds, else 1.

    Raises:
      ValueError: Bad input; before anything is compiled.
    """
    from nnxlab import printing
    from nnxlab.runs import matrix, setup

    made, outcomes = setup.from_arguments(arguments), []
    with printing.steps(made.steps * matrix.COMPILED_RUNS) as show:
        for outcome in matrix.run(made, show):
            outcomes.append(outcome)
            if arguments.csv and any(len(o.steps) for o in outcomes):
                matrix.frame(outcomes).to_csv(arguments.csv, index=False)
    claims = matrix.claims(outcomes, made)
    shown = arguments.json and printing.report(_report(arguments, outcomes, claims), arguments.json)
    if not shown:
        printing.table(matrix.table(outcomes).astype(object).fillna("-"))
        for claim in claims:
            printing.line(f"{'PASS' if claim.holds else 'FAIL'}  {claim.text}")
    return 0 if all(claim.holds for claim in claims) else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``nnxlab matrix``."""
    options.add(parser)
    options.add_json(parser)
    text = "all figures, a line a step"
    parser.add_argument("--csv", type=options.output, metavar="FILE", help=text)


def _report(arguments: argparse.Namespace, outcomes, claims) -> dict:
    runs = [
        {
            "cell": outcome.cell,
            "broken": list(outcome.broken),
            "error": outcome.error,
            "steps": outcome.steps.to_dict("records"),
        }
        for outcome in outcomes
    ]
    held = {claim.text: claim.holds for claim in claims}
    return {"config": arguments.config, "runs": runs, "claims": held}
