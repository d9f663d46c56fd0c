"""The pictures of the price: bytes a chip over the number of chips, and by group."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from nnxlab.chips import CHIPS, GIB
from nnxlab.figures import BROKEN, FIXED, NEUTRAL
from nnxlab.scale.price import by_group

LINES = ("v5e", "v6e", "v5p")  # v4 has v6e's HBM
LABELS = {"fixed": "as declared", "broken": "after one broken forward"}
COLOURS = {"fixed": FIXED, "broken": BROKEN}


def over_chips(curve: pd.DataFrame, title: str = "") -> Figure:
    """Bytes a chip (parameters, gradients, AdamW) over the number of chips, and what chips hold.

    Args:
      curve: ``slices.curve``'s.
      title: What is priced.

    Raises:
      ValueError: The curve is empty.
    """
    _check(curve)
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    _draw_over_chips(axes, curve)
    return _finished(figure, title)


def over_groups(table: pd.DataFrame, title: str = "") -> Figure:
    """Parameter bytes a chip of each group, before and after, on a logarithmic axis.

    Args:
      table: ``price.price``'s.
      title: What is priced.
    """
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    _draw_over_groups(axes, table)
    return _finished(figure, title)


def price(curve: pd.DataFrame, table: pd.DataFrame, title: str = "") -> Figure:
    """Both pictures side by side; arguments and errors as theirs."""
    _check(curve)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.0, 4.6), layout="constrained")
    _draw_over_chips(left, curve)
    _draw_over_groups(right, table)
    return _finished(figure, title)


def _check(curve: pd.DataFrame) -> None:
    if curve.empty:
        raise ValueError("nothing to draw: no mesh of the sizes asked for fits the weights")


def _draw_over_chips(axes: Axes, curve: pd.DataFrame) -> None:
    for state, marker in (("fixed", "o"), ("broken", "s")):
        label, colour = LABELS[state], COLOURS[state]
        axes.plot(curve["chips"], curve[state] / GIB, marker=marker, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xticks(curve["chips"], [str(chips) for chips in curve["chips"]], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.04)
    right = axes.get_xlim()[1]
    for kind in LINES:
        held = CHIPS[kind].hbm_bytes / GIB
        axes.axhline(held, color=NEUTRAL, linestyle="--", linewidth=1, zorder=0)
        # Beside the panel and not in it: the curves cross these lines.
        axes.annotate(
            f" {kind}: {held:g} GiB", (right, held), va="center", fontsize=8, annotation_clip=False
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(
        title="Parameters, gradients and AdamW; dashed: HBM",
        xlabel=_chips_label(curve),
        ylabel="GiB a chip",
    )
    _legend_below(axes)


def _draw_over_groups(axes: Axes, table: pd.DataFrame) -> None:
    groups, height = by_group(table), 0.38
    unit, name = (2**20, "MiB") if groups["broken"].max() >= 2**24 else (2**10, "KiB")
    for offset, state in ((-height / 2, "fixed"), (height / 2, "broken")):
        held = groups[state] / unit
        bars = axes.barh(
            groups.index + offset, held, height, color=COLOURS[state], label=LABELS[state]
        )
        axes.bar_label(bars, [f"{value:,.1f}" for value in held], padding=2, fontsize=7)
    axes.set_yticks(groups.index, groups["group"])
    axes.invert_yaxis()
    axes.set_xscale("log", base=10)
    low, high = axes.get_xlim()
    axes.set(
        xlim=(low, high * 8),  # room for the largest bar's figure
        title="Parameters by group",
        xlabel=f"{name} a chip",
    )
    _legend_below(axes)


def _chips_label(curve: pd.DataFrame) -> str:
    tensor = curve["mesh"].map(lambda mesh: mesh.get("tensor", 1))
    grown = curve["chips"][tensor > tensor.iloc[0]]
    return f"chips (from {grown.iloc[0]} on, tensor grows)" if len(grown) else "chips"


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def _finished(figure: Figure, title: str) -> Figure:
    if title:
        figure.suptitle(title, fontsize=11)
    plt.close(figure)  # a notebook then shows it as a cell's value and not a second time
    return figure
