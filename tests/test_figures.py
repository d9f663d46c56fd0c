import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab import devices, figures
from nnxlab.training import Result

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def _bars(panel):
    return [(bar.get_x(), bar.get_width()) for bar in panel.patches]


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_placement_shows_what_each_device_holds_at_any_rank(rank):
    mesh = devices.mesh("fsdp=8")
    spec = PartitionSpec(*[None] * (rank - 1), "fsdp")
    figure = figures.placement(
        "kernel", (16,) * rank, {"good": ["n"] * rank}, {"good": NamedSharding(mesh, spec)}
    )
    assert len(figure.axes) == rank
    assert _bars(figure.axes[-1]) == [(2 * device, 2) for device in range(8)]
    for panel in figure.axes[:-1]:
        assert _bars(panel) == [(0, 16)] * 8
        assert all(bar.get_hatch() for bar in panel.patches)


def test_placement_rows_share_one_order_of_devices():
    mesh = devices.mesh("fsdp=8")
    shardings = {
        "good": NamedSharding(mesh, PartitionSpec("fsdp", None)),
        "bad": NamedSharding(mesh, PartitionSpec(None, None)),
    }
    names = {"good": ("embed", "mlp"), "bad": ("layers", "mlp")}
    figure = figures.placement("kernel", (8, 4), names, shardings)
    assert [panel.get_title() for panel in figure.axes] == [
        "'embed': 8",
        "'mlp': 4",
        "'layers': 8",
        "'mlp': 4",
    ]
    assert all(panel.get_ylim() == (7.5, -0.5) for panel in figure.axes)


def _result(mtp, gradient):
    weight = {"mtp_block.w": np.full(2, gradient), "decoder.w": np.ones(2)}
    return Result(6.0 + mtp, np.float32(6.0), np.float32(mtp), None, weight)


def test_losses_stacks_the_mtp_term_on_the_rest():
    figure = figures.losses({"broken": _result(0.0, 0.0), "fixed": _result(0.5, 1.0)})
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == [6.0, 6.0, 0.0, 0.5]
    assert [bar.get_height() for bar in figure.axes[1].patches] == [0.0, pytest.approx(2**0.5)]


def test_reached_marks_hits_and_misses_with_other_shapes_and_colours():
    figure = figures.reached(["a", "b"], {"run": {"a"}})
    hit, miss = figure.axes[0].collections
    assert tuple(hit.get_facecolor()[0]) != tuple(miss.get_facecolor()[0])
    assert len(hit.get_paths()[0].vertices) != len(miss.get_paths()[0].vertices)


def test_bytes_and_groups_have_titles_units_and_add_up():
    figure = figures.bytes_per_device(2**20, 2 * 2**20, 8 * 2**20)
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1, 2, 8]
    assert axes.get_title() and "MiB" in axes.get_xlabel()
    axes = figures.parameters_by_group({"m": {"x": 1, "y": 3}}).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [25, 75]
    assert axes.get_title() and "%" in axes.get_xlabel()


def test_curves_have_a_panel_a_figure_and_a_line_a_run():
    frame = pd.DataFrame({"step": [0, 1], "loss": [2.0, 1.0], "mtp_loss": [0.5, 0.4]})
    figure = figures.curves(
        {"broken": frame, "fixed": frame, "theirs": frame},
        {"loss": "loss (nats)", "mtp_loss": "mtp_loss (nats)"},
        "two steps",
        {"theirs": {"color": figures.NEUTRAL}},
    )
    assert [panel.get_ylabel() for panel in figure.axes] == ["loss (nats)", "mtp_loss (nats)"]
    for panel in figure.axes:
        colours = [line.get_color() for line in panel.lines]
        assert colours == [figures.BROKEN, figures.FIXED, figures.NEUTRAL]
        assert panel.get_xlabel() == "step"
    assert list(figure.axes[1].lines[0].get_ydata()) == [0.5, 0.4]
