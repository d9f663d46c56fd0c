import hypothesis.strategies as st
import pytest
from hypothesis import given

from nnxlab import chips


@pytest.mark.parametrize(
    ("text", "kind", "shape"),
    [
        ("v6e:2x4", "v6e", (2, 4)),
        ("v5e:16x16", "v5e", (16, 16)),
        ("v5p:8x8x8", "v5p", (8, 8, 8)),
        ("v4:2x2x2", "v4", (2, 2, 2)),
        ("cpu:8", "cpu", (8,)),
    ],
)
def test_topologies_by_name(text, kind, shape):
    chip, found = chips.parse_topology(text)
    assert (chip.kind, found) == (kind, shape)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v7:2x4", "unknown chip 'v7'; known: v4, v5e, v5p, v6e, cpu"),
        ("v6e", "not KIND:SIZES, as in v6e:2x4"),
        ("v6e:", "not KIND:SIZES"),
        ("v6e:2x-4", "not KIND:SIZES"),
        ("v6e:2x0", "not KIND:SIZES"),
        ("v6e:2x²", "not KIND:SIZES"),
        ("v6e:2x2x2", "v6e takes 2 sizes, as in v6e:2x2"),
        ("v5p:8x8", "v5p takes 3 sizes, as in v5p:2x2x2"),
        ("cpu:2x4", "cpu takes 1 size, as in cpu:2"),
        ("v5e:32x32", "1024 chips, and the largest slice of v5e has 256"),
    ],
)
def test_what_is_wrong_with_a_topology_is_said(text, message):
    with pytest.raises(ValueError, match=message) as error:
        chips.parse_topology(text)
    assert repr(text) in str(error.value)


def test_several_faults_are_raised_together():
    with pytest.raises(ValueError, match="unknown chip 'tpu'.*not KIND:SIZES"):
        chips.parse_topology("tpu:many")


@given(st.sampled_from(sorted(chips.CHIPS)), st.lists(st.integers(1, 16), min_size=1, max_size=3))
def test_a_topology_reads_back(kind, sizes):
    text = f"{kind}:{'x'.join(map(str, sizes))}"
    if len(sizes) == chips.CHIPS[kind].rank:
        assert chips.parse_topology(text) == (chips.CHIPS[kind], tuple(sizes))
    else:
        with pytest.raises(ValueError, match="takes"):
            chips.parse_topology(text)


def test_slices_ascend_and_the_host_has_no_hbm():
    for kind, chip in chips.CHIPS.items():
        assert chip.kind == kind and chip.hbm_bytes > 0
        assert list(chip.slices) == sorted(set(chip.slices))
    assert chips.CPU.hbm_bytes is None
