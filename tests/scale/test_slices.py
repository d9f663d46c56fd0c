import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnxlab.chips import CHIPS
from nnxlab.model.config import config_named
from nnxlab.rules import MAXTEXT_RULES
from nnxlab.scale import price, slices

FULL = price.weights(config_named("deepseek3-671b"))
SIZES = tuple(2**power for power in range(3, 13))
MESHES = [{"fsdp": 512}, {"fsdp": 64, "expert": 8}, {"fsdp": 128, "tensor": 4}]


@given(st.sampled_from(MESHES), st.sampled_from(SIZES))
def test_a_resized_mesh_has_the_size_asked_for_and_fits(axes, chips):
    mesh, table = slices.resized(FULL, axes, chips)
    assert math.prod(mesh.values()) == chips
    assert mesh.get("expert") == axes.get("expert")
    assert table.equals(price.price(FULL, mesh))


@pytest.mark.parametrize(
    ("axes", "chips", "larger"),
    [
        ({"fsdp": 8}, 512, {"fsdp": 512}),
        ({"fsdp": 8}, 4096, {"fsdp": 512, "tensor": 8}),
        # 512 bounds fsdp times expert: the rules put both on q_lora and kv_lora.
        ({"fsdp": 1, "expert": 8}, 4096, {"fsdp": 64, "expert": 8, "tensor": 8}),
        ({"tensor": 4, "fsdp": 1}, 2048, {"fsdp": 512, "tensor": 4}),
        # Without fsdp the first axis grows.
        ({"expert": 2}, 256, {"expert": 256}),
    ],
)
def test_fsdp_takes_what_divides_and_tensor_the_rest(axes, chips, larger):
    assert slices.resized(FULL, axes, chips)[0] == larger


@pytest.mark.parametrize(
    ("axes", "chips"), [({"fsdp": 1, "expert": 8}, 4), ({"fsdp": 1}, 6144), ({"tensor": 2}, 4096)]
)
def test_where_no_mesh_fits_there_is_none(axes, chips):
    assert slices.resized(FULL, axes, chips) is None


def test_without_tensor_in_the_rules_nothing_takes_the_rest():
    rules = tuple(
        (name, tuple(a for a in ([axes] if isinstance(axes, str) else axes) if a != "tensor"))
        for name, axes in MAXTEXT_RULES
    )
    assert slices.resized(FULL, {"fsdp": 8}, 512, rules=rules)[0] == {"fsdp": 512}
    assert slices.resized(FULL, {"fsdp": 8}, 1024, rules=rules) is None


@pytest.mark.parametrize("axes", MESHES)
def test_the_curve_falls_and_the_bug_lies_above(axes):
    curve = slices.curve(FULL, axes, (*SIZES, 6144))
    assert tuple(curve["chips"]) == SIZES
    assert curve["fixed"].is_monotonic_decreasing and curve["broken"].is_monotonic_decreasing
    assert (curve["broken"] > curve["fixed"]).all()
    # As declared nearly nothing is replicated; after the bug the factor grows with the mesh.
    assert (curve["fixed"] * curve["chips"] < 1.05 * 16 * FULL.count).all()
    factors = curve["broken"] / curve["fixed"]
    assert factors.iloc[-1] > 9 > factors.iloc[0]


@given(st.sampled_from(sorted(CHIPS)), st.sampled_from(["fixed", "broken"]))
def test_the_smallest_slice_holds_the_state_and_the_next_smaller_does_not(kind, state):
    chip, curve = CHIPS[kind], slices.curve(FULL, {"fsdp": 512}, CHIPS[kind].slices)
    found = slices.smallest(curve, chip, state)
    held = dict(zip(curve["chips"], curve[state], strict=True))
    large_enough = [size for size, held in held.items() if held <= chip.hbm_bytes]
    assert (found["chips"] if found else None) == min(large_enough, default=None)


def test_the_bug_costs_slices():
    def chips(axes, kind, **options):
        curve = slices.curve(FULL, axes, CHIPS[kind].slices, **options)
        found = [slices.smallest(curve, CHIPS[kind], state) for state in ("fixed", "broken")]
        return tuple(one and one["chips"] for one in found)

    assert chips({"fsdp": 512}, "v5p") == (128, 1024)
    assert chips({"fsdp": 64, "expert": 8}, "v5p") == (128, 2048)
    assert chips({"fsdp": 512}, "v6e", dtype="bfloat16") == (256, None)
    assert chips({"fsdp": 512}, "v5e") == (None, None)


def test_a_size_that_is_no_slice_of_the_chip_is_not_offered():
    curve = pd.DataFrame({"chips": [2, 8], "mesh": [{"fsdp": 2}, {"fsdp": 8}], "fixed": [1, 1]})
    assert slices.smallest(curve, CHIPS["v5p"], "fixed") == {"chips": 8, "mesh": {"fsdp": 8}}
    assert slices.smallest(curve.iloc[:0], CHIPS["v5p"], "fixed") is None
