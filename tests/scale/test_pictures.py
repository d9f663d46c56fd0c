import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba

from nnxlab.chips import CHIPS, GIB
from nnxlab.figures import BROKEN, FIXED
from nnxlab.model.config import config_named
from nnxlab.scale import pictures, price, slices

SIZES = tuple(2**power for power in range(3, 13))
FULL = price.weights(config_named("deepseek3-671b"))
CURVE = slices.curve(FULL, {"fsdp": 512}, SIZES)
TABLE = price.price(FULL, {"fsdp": 512})


def test_the_curves_are_the_figures_in_gib_and_in_their_colours():
    (axes,) = pictures.over_chips(CURVE, "title").axes
    drawn = {line.get_color(): line for line in axes.lines}
    for colour, state in ((FIXED, "fixed"), (BROKEN, "broken")):
        assert np.allclose(drawn[colour].get_ydata(), CURVE[state] / GIB)
        assert list(drawn[colour].get_xdata()) == list(SIZES)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "from 1024 on, tensor grows" in axes.get_xlabel() and "GiB" in axes.get_ylabel()


def test_each_hbm_line_is_drawn_and_labelled():
    (axes,) = pictures.over_chips(CURVE).axes
    dashed = {line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"}
    assert dashed == {CHIPS[kind].hbm_bytes / GIB for kind in ("v5e", "v5p", "v6e")}
    assert {text.get_text().strip() for text in axes.texts} == {
        "v5e: 16 GiB",
        "v6e: 32 GiB",
        "v5p: 95 GiB",
    }


def test_no_mesh_axis_grows_silently():
    short = pictures.over_chips(CURVE[CURVE["chips"] <= 512])
    assert short.axes[0].get_xlabel() == "chips"


def test_the_bars_are_the_groups_in_mib():
    (axes,) = pictures.over_groups(TABLE).axes
    groups = price.by_group(TABLE)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(groups["group"])
    for colour, state in ((FIXED, "fixed"), (BROKEN, "broken")):
        widths = [b.get_width() for b in axes.patches if b.get_facecolor() == to_rgba(colour)]
        assert np.allclose(widths, groups[state] / 2**20)
    assert "MiB" in axes.get_xlabel()


def test_a_small_models_bars_are_in_kib():
    table = price.price(price.weights(config_named("small")), {"fsdp": 8})
    assert "KiB" in pictures.over_groups(table).axes[0].get_xlabel()


@pytest.mark.parametrize("axes", [{"fsdp": 512}, {"fsdp": 64, "expert": 8}])
def test_no_text_of_the_picture_lies_on_another(axes):
    curve, table = slices.curve(FULL, axes, SIZES), price.price(FULL, axes)
    figure = pictures.price(curve, table, "deepseek3-671b, float32")
    figure.draw_without_rendering()
    texts = []
    for panel in figure.axes:
        texts += [*panel.texts, *panel.get_legend().texts]
        texts += [panel.title, panel.xaxis.label, panel.yaxis.label]
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())  # ticks beyond it are not drawn
            texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text()]
    for index, (one, box) in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, one
        assert not [other for other, b in boxes[index + 1 :] if box.overlaps(b)], one


def test_an_empty_curve_is_refused_and_no_figure_stays_open():
    open_before = plt.get_fignums()
    with pytest.raises(ValueError, match="nothing to draw"):
        pictures.over_chips(CURVE.iloc[:0])
    pictures.over_chips(CURVE)
    assert plt.get_fignums() == open_before
