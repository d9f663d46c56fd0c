import pytest
from flax import nnx

from nnxlab.cases import capture

needs_capture = pytest.mark.skipif(
    not hasattr(nnx, "capture"), reason="nnx.capture came with flax 0.12.6"
)


def test_a_filter_that_comes_after_its_parent_finds_nothing():
    found = capture.by_filters().set_index("how")["mtp_losses found"]
    child_first = [how for how in found.index if how.index("mtp_losses") < _parent(how)]
    assert found[child_first].tolist() == [1, 1]
    assert found.drop(child_first).tolist() == [0, 0, 0, 0]


def _parent(how):
    return how.index("Intermediate")


@needs_capture
def test_capture_finds_the_value_in_one_way_of_five():
    found = capture.by_capture().set_index("how")["mtp_losses found"]
    assert found["capture(mtp_losses), sown"] == 1
    assert found.sum() == 1 and len(found) == 5


def test_a_flax_without_capture_is_told(monkeypatch):
    monkeypatch.delattr(nnx, "capture", raising=False)
    with pytest.raises(RuntimeError, match=r"needs flax >= 0\.12\.6"):
        capture.by_capture()
