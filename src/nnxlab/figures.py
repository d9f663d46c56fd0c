"""The pictures: what each device holds, where a loss went, what a rule reached.

Two colours throughout, of the Okabe-Ito palette that colour-blind readers can tell apart: orange
is broken, blue is fixed; grey is neither.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jax.sharding import NamedSharding
from matplotlib.figure import Figure

from nnxlab.rules import spec_text
from nnxlab.training import Result, norm

BROKEN, FIXED, NEUTRAL = "#E69F00", "#0072B2", "#999999"


def placement(
    title: str,
    shape: Sequence[int],
    names: Mapping[str, Sequence[str | None]],
    shardings: Mapping[str, NamedSharding],
) -> Figure:
    """Which slice of an array each device holds: a row a sharding, a panel a dimension.

    Any rank: a device's shard is a product of intervals, and each panel shows one factor. A
    device whose bars all span their panels holds the whole array.

    Args:
      title: What is shown.
      shape: The array's shape.
      names: The logical axis names under each label of ``shardings``.
      shardings: One NamedSharding a row, by label, all on one mesh; the first is the good one.
    """
    figure, axes = plt.subplots(
        len(shardings),
        len(shape),
        figsize=(2.6 * len(shape) + 1.5, 2.2 * len(shardings) + 0.6),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for row, (label, sharding) in enumerate(shardings.items()):
        slices = list(sharding.devices_indices_map(tuple(shape)).values())
        colour = BROKEN if row else FIXED
        for dimension, size in enumerate(shape):
            held = [index[dimension].indices(size)[:2] for index in slices]
            panel, whole = axes[row][dimension], all(pair == (0, size) for pair in held)
            panel.barh(
                range(len(held)),
                [stop - start for start, stop in held],
                left=[start for start, _ in held],
                color="white" if whole else colour,
                edgecolor=colour,
                hatch="////" if whole else None,
            )
            panel.set_xlim(0, size)
            panel.set_title(f"{names[label][dimension]!r}: {size}", fontsize=9)
        axes[row][0].set_ylim(len(slices) - 0.5, -0.5)
        axes[row][0].set_ylabel(f"{label}\n{spec_text(sharding.spec)}\ndevice", fontsize=9)
    for panel in axes[-1]:
        panel.set_xlabel("index held")
    figure.suptitle(f"{title}   (hatched: every device holds the whole dimension)", fontsize=10)
    return _shown_once(figure)


def losses(results: Mapping[str, Result]) -> Figure:
    """The total loss of each run, split into its next-token and its MTP part, in nats."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
    labels = list(results)
    lm = np.array([float(results[label].lm_loss) for label in labels])
    mtp = np.array([float(results[label].mtp_loss) for label in labels])
    left.bar(labels, lm, color=NEUTRAL, label="next token")
    colours = [BROKEN if label == "broken" else FIXED for label in labels]
    bars = left.bar(labels, mtp, bottom=lm, color=FIXED, label="mtp_loss")
    left.bar_label(bars, [f"+{value:.3f}" for value in mtp], padding=2)
    left.set(title="Total loss", ylabel="nats", ylim=(0, 1.2 * float((lm + mtp).max())))
    left.legend(loc="lower right")
    norms = [
        norm(g for path, g in results[label].gradients.items() if path.startswith("mtp_block."))
        for label in labels
    ]
    bars = right.bar(labels, norms, color=colours)
    right.bar_label(bars, [f"{value:.3f}" for value in norms], padding=2)
    right.set(title="Gradient norm of the MTP weights", ylabel="norm", ylim=(0, 1.2 * max(norms)))
    return _shown_once(figure)


def reached(modules: Sequence[str], by_run: Mapping[str, set[str]]) -> Figure:
    """Which modules a quantization reached: a row a module, a column a run."""
    figure, axes = plt.subplots(
        figsize=(2.2 * len(by_run) + 4.5, 0.24 * len(modules) + 1.0), layout="constrained"
    )
    for column, done in enumerate(by_run.values()):
        for row, module in enumerate(modules):
            hit = module in done
            marker, colour = ("o", FIXED) if hit else ("x", BROKEN)
            axes.scatter(column, row, marker=marker, color=colour, s=36)
    axes.set_xticks(range(len(by_run)), list(by_run))
    axes.set_yticks(range(len(modules)), list(modules), fontsize=7)
    axes.set(
        xlim=(-0.5, len(by_run) - 0.5),
        ylim=(len(modules) - 0.5, -0.5),
        title="Weights that a quantization rule reached (o) and missed (x)",
    )
    axes.xaxis.tick_top()
    return _shown_once(figure)


def curves(
    runs: Mapping[str, pd.DataFrame],
    panels: Mapping[str, str],
    title: str,
    styles: Mapping[str, dict] | None = None,
) -> Figure:
    """Training curves: a panel a figure, a line a run, over the steps.

    Args:
      runs: One row a step, with the columns ``step`` and those of ``panels``, by label.
      panels: What the vertical axis of each column's panel is called, with its unit.
      title: What is compared.
      styles: Line options of a label; broken runs are orange and the others blue by default.
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels), 3.2), squeeze=False, layout="constrained"
    )
    for panel, (column, name) in zip(axes[0], panels.items(), strict=True):
        for label, frame in runs.items():
            style = {"color": BROKEN if label.startswith("broken") else FIXED}
            style |= (styles or {}).get(label, {})
            panel.plot(frame["step"], frame[column], label=label, **style)
        panel.set(xlabel="step", ylabel=name)
        panel.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(runs), frameon=False)
    figure.suptitle(title, fontsize=10)
    return _shown_once(figure)


def bytes_per_device(before: float, after: float, replicated: float, unit: int = 2**20) -> Figure:
    """Parameter bytes a device holds: as declared, after the bug, and if nothing were sharded."""
    figure, axes = plt.subplots(figsize=(6.5, 2.2), layout="constrained")
    labels = ["as declared", "after one broken forward", "nothing sharded"]
    values = [before / unit, after / unit, replicated / unit]
    bars = axes.barh(labels, values, color=[FIXED, BROKEN, NEUTRAL])
    axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=3)
    axes.set(title="Parameters on each device", xlabel="MiB a device", xlim=(0, 1.12 * values[-1]))
    axes.invert_yaxis()
    return _shown_once(figure)


def parameters_by_group(counts: Mapping[str, Mapping[str, int]]) -> Figure:
    """Where the parameters of some models are: a bar a model, a segment a group, in per cent."""
    figure, axes = plt.subplots(figsize=(8.5, 0.5 * len(counts) + 1.4), layout="constrained")
    groups = list(dict.fromkeys(group for count in counts.values() for group in count))
    colours = plt.colormaps["cividis"](np.linspace(0, 1, len(groups)))
    left = np.zeros(len(counts))
    for group, colour in zip(groups, colours, strict=True):
        total = np.array([sum(count.values()) for count in counts.values()])
        share = 100 * np.array([count.get(group, 0) for count in counts.values()]) / total
        axes.barh(list(counts), share, left=left, color=colour, label=group, edgecolor="white")
        left += share
    axes.set(title="Where the parameters are", xlabel="% of all parameters", xlim=(0, 100))
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return _shown_once(figure)


def _shown_once(figure: Figure) -> Figure:
    """``figure``, closed: a notebook then shows it as a cell's value and not a second time."""
    plt.close(figure)
    return figure
