"""What ``nnxlab price`` says: one dict of figures, and the tables that show it."""

import math

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from nnxlab import chips
from nnxlab.scale import price, slices


def figures(
    weights: price.Weights,
    axes: dict[str, int],
    table: pd.DataFrame,
    curve: pd.DataFrame,
    chip: chips.Chip | None,
) -> dict:
    """The figures of ``nnxlab price --json``.

    Args:
      weights: What is priced.
      axes: The mesh.
      table: ``price.price``'s of both.
      curve: ``slices.curve``'s over every slice of every chip.
      chip: Whose HBM the totals are shares of, or None.
    """
    hbm = chip.hbm_bytes if chip else None
    return {
        "mesh": axes,
        "chips": math.prod(axes.values()),
        "hbm_bytes_per_chip": hbm,
        "parameters": weights.count,
        "parameters_without_routing_bias": weights.count_without_routing_bias,
        "parameters_by_group": price.by_group(table).set_index("group")["elements"].to_dict(),
        "counted": "parameters, gradients, AdamW's mu and nu; no activations",
        "fixed": _state(table, "fixed", hbm),
        "broken": _state(table, "broken", hbm),
        "smallest_slice": {
            kind: {state: slices.smallest(curve, one, state) for state in ("fixed", "broken")}
            for kind, one in chips.CHIPS.items()
        },
    }


def show(report: dict) -> None:
    """Prints the figures, with the command's own entries, as tables."""
    out = Console(highlight=False, markup=False)
    out.print(
        f"{report['config']}, MTP layers: {report['mtp_num_layers']}\n"
        f"{report['parameters']:,} parameters, "
        f"{report['parameters_without_routing_bias']:,} without the routing biases\n"
        f"mesh {_text(report['mesh'])}, {report['chips']} chips, {report['weight_dtype']}"
    )
    out.print(_bytes_table(report))
    out.print(_slices_table(report))
    out.print(
        "Counted: parameters, gradients and AdamW's two moments.\n"
        "Not counted: activations. A slice that holds the state need not hold a step."
    )


def _state(table, state: str, hbm: int | None) -> dict:
    found = price.bytes_per_chip(table, state)
    groups = price.by_group(table)
    found["by_group"] = {
        group: price.bytes_per_chip(rows, state) for group, rows in groups.groupby("group")
    }
    if hbm:
        found["hbm_share"] = found["total_bytes_per_chip"] / hbm
    return found


def _bytes_table(report: dict) -> Table:
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        title="Bytes a chip, parameters by group",
        title_justify="left",
    )
    table.add_column("")
    for name in ("as declared", "after the bug", "factor"):
        table.add_column(name, justify="right")
    fixed, broken = report["fixed"], report["broken"]

    def add(label: str, key: str, before: dict, after: dict) -> None:
        before, after = before[key], after[key]
        table.add_row(label, _size(before), _size(after), f"{after / before:.1f}")

    for group in report["parameters_by_group"]:
        before, after = fixed["by_group"][group], broken["by_group"][group]
        add(group, "parameter_bytes_per_chip", before, after)
    table.add_section()
    for label, key in _TOTALS.items():
        add(label, key, fixed, broken)
    if "hbm_share" in fixed:
        label = f"share of {report['topology'].partition(':')[0]}'s HBM"
        shares = [state["hbm_share"] for state in (fixed, broken)]
        table.add_row(label, *[f"{share:.1%}" for share in shares], "")
    return table


def _slices_table(report: dict) -> Table:
    title = "Smallest slice that holds the state"
    table = Table(box=box.SIMPLE, pad_edge=False, title=title, title_justify="left")
    for name in ("chip", "HBM", "as declared", "after the bug"):
        table.add_column(name)
    for kind, found in report["smallest_slice"].items():
        chip = chips.CHIPS[kind]
        none = f"none up to {chip.largest}"
        cells = [f"{one['chips']}: {_text(one['mesh'])}" if one else none for one in found.values()]
        table.add_row(kind, _size(chip.hbm_bytes), *cells)
    return table


_TOTALS = {
    "all parameters": "parameter_bytes_per_chip",
    "gradients": "gradient_bytes_per_chip",
    "AdamW (mu and nu)": "optimizer_bytes_per_chip",
    "total": "total_bytes_per_chip",
}


def _text(axes: dict[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in axes.items())


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
