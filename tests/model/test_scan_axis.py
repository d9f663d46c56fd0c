import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import assume, given
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab import compat
from nnxlab.model import scan_axis
from nnxlab.model.scan_axis import RECORDED, ScanAxis, ScanAxisError

other_names = st.one_of(
    st.none(), st.sampled_from(["embed", "mlp", "kv", "layers"]), st.just(("fsdp", "tensor"))
)
layer_names = st.lists(other_names, max_size=6).map(tuple)


@st.composite
def stacks(draw):
    """Consistent names of a stack, and its axis."""
    names = draw(layer_names)
    position = draw(st.integers(0, len(names)))
    axis = ScanAxis("stack", position)
    return (*names[:position], "stack", *names[position:]), axis


@given(stacks())
def test_add_after_remove_is_the_identity(stack):
    names, axis = stack
    layer = scan_axis.remove(names, axis, len(names) - 1)
    assert scan_axis.add(layer, axis, len(names) - 1) == names


@given(layer_names, st.data())
def test_remove_after_add_is_the_identity(names, data):
    axis = ScanAxis("stack", data.draw(st.integers(0, len(names))))
    stacked = scan_axis.add(names, axis, len(names))
    assert stacked.index("stack") == axis.position
    assert scan_axis.remove(stacked, axis, len(names)) == names


@given(stacks(), st.integers(-3, 3))
def test_too_many_or_too_few_names_raise(stack, off):
    assume(off)
    names, axis = stack
    rank = max(len(names) - 1 + off, 0)
    assume(rank != len(names) - 1)
    with pytest.raises(ScanAxisError, match="names for"):
        scan_axis.remove(names, axis, rank)


@given(stacks())
def test_a_missing_name_raises(stack):
    names, axis = stack
    with pytest.raises(ScanAxisError, match="'other' stands 0 times"):
        scan_axis.remove(names, ScanAxis("other", axis.position), len(names) - 1)


@given(stacks(), st.data())
def test_a_name_that_stands_twice_raises(stack, data):
    names, axis = stack
    at = data.draw(st.integers(0, len(names)))
    twice = (*names[:at], "stack", *names[at:])
    with pytest.raises(ScanAxisError, match="stands 2 times"):
        scan_axis.remove(twice, axis, len(twice) - 1)
    with pytest.raises(ScanAxisError, match="already there"):
        scan_axis.add(names, axis, len(names))


@given(stacks(), st.integers(-2, 9))
def test_a_wrong_place_raises(stack, position):
    names, axis = stack
    assume(position != axis.position)
    with pytest.raises(ScanAxisError, match=f"not at {position}"):
        scan_axis.remove(names, ScanAxis("stack", position), len(names) - 1)


@given(layer_names, st.integers(-5, 12))
def test_a_position_outside_the_value_raises(names, position):
    assume(not 0 <= position <= len(names))
    with pytest.raises(ScanAxisError, match="outside a value"):
        scan_axis.add(names, ScanAxis("stack", position), len(names))


@given(st.integers(-9, 9), st.integers(0, 6))
def test_position_counts_from_the_end_and_is_cut_to_the_weights_rank(axis, rank):
    position = scan_axis.position_for(axis, rank)
    if axis > rank:
        assert position == rank
    elif axis < -rank - 1:
        assert position == 0
    else:
        assert position == axis % (rank + 1)


def _variable(names, shape, name="stack", position=0):
    value = nnx.Param(jnp.zeros(shape), out_sharding=names, eager_sharding=False)
    value.set_metadata(**{nnx.PARTITION_NAME: name, scan_axis.POSITION_KEY: position})
    return value


def test_a_state_goes_to_a_layer_and_back_unchanged():
    state = nnx.State(
        {"a": {"w": _variable(("stack", "x"), (3, 2)), "free": nnx.Param(jnp.zeros(()))}}
    )
    layer = scan_axis.to_layer(state, RECORDED)
    assert compat.logical_axes(layer["a"]["w"]) == ("x",)
    assert compat.logical_axes(scan_axis.to_stack(layer, RECORDED)["a"]["w"]) == ("stack", "x")
    assert compat.logical_axes(layer["a"]["free"]) is None


@pytest.mark.parametrize("form", ["tuple", "PartitionSpec", "NamedSharding"])
def test_every_form_of_metadata_is_read_as_names(form, mesh):
    forms = {"tuple": (None, "fsdp"), "PartitionSpec": PartitionSpec(None, "fsdp")}
    forms["NamedSharding"] = NamedSharding(mesh, PartitionSpec("fsdp", None))
    name = "fsdp" if form == "NamedSharding" else None
    variable = _variable(forms[form], (8, 2), name="fsdp", position=0 if name else 1)
    layer = scan_axis.to_layer(nnx.State({"w": variable}), RECORDED)
    assert compat.logical_axes(layer["w"]) == (None,)
    back = scan_axis.to_stack(layer, RECORDED)["w"]
    assert compat.logical_axes(back) == compat.logical_axes(variable)


def test_the_input_state_is_left_alone():
    state = nnx.State({"w": _variable(("stack", "x"), (3, 2))})
    scan_axis.to_layer(state, RECORDED)
    assert compat.logical_axes(state["w"]) == ("stack", "x")


def test_all_faults_of_a_state_are_raised_at_once_with_path_names_and_rank():
    bare = nnx.Param(jnp.zeros((3, 2)), out_sharding=("stack", "x"), eager_sharding=False)
    state = nnx.State(
        {
            "long": _variable(("stack", "x", "y"), (3, 2)),
            "short": _variable(("stack",), (3, 2)),
            "misplaced": _variable(("x", "stack"), (3, 2)),
            "unrecorded": bare,
            "sound": _variable(("stack", "x"), (3, 2)),
        }
    )
    with pytest.raises(ScanAxisError) as caught:
        scan_axis.to_layer(state, RECORDED)
    text = str(caught.value)
    assert "long: names ('stack', 'x', 'y'), rank 2: 3 names" in text
    assert "short: names ('stack',), rank 2: 1 names" in text
    assert "misplaced: names ('x', 'stack'), rank 2: 'stack' at 1, not at 0" in text
    assert "unrecorded: names ('stack', 'x'), rank 2: records no partition_name" in text
    assert "sound" not in text


def test_all_faults_on_the_way_back_are_raised_at_once_too():
    layer = {
        "a": {"there": _variable(("x", "stack", "y"), (3, 2, 2))},
        "long": _variable(("x", "y"), (3, 2)),
        "outside": _variable(("x",), (3, 2), position=2),
        "sound": _variable(("x",), (3, 2)),
    }
    with pytest.raises(ScanAxisError) as caught:
        scan_axis.to_stack(nnx.State(layer), RECORDED)
    text = str(caught.value)
    assert "a.there: names ('x', 'stack', 'y'), rank 3: 3 names" in text
    assert "long: names ('x', 'y'), rank 2: 2 names for a layer's value of rank 1" in text
    assert "outside: names ('x',), rank 2: position 2 is outside" in text
    assert "sound" not in text


@pytest.mark.parametrize("operation", [scan_axis.to_layer, scan_axis.to_stack])
def test_where_the_stack_stands_is_put_before_the_path(operation):
    state = nnx.State({"a": {"w": _variable(("stack",), (3, 2))}})
    with pytest.raises(ScanAxisError, match=r"  decoder\.moe_layers\.a\.w: names"):
        operation(state, RECORDED, "decoder.moe_layers")


@pytest.mark.parametrize("key", [nnx.PARTITION_NAME, scan_axis.POSITION_KEY])
def test_half_a_record_is_named(key):
    variable = _variable(("stack", "x"), (3, 2))
    variable.set_metadata(**{key: None})
    with pytest.raises(ScanAxisError, match=f"records no {key}$"):
        scan_axis.recorded_axis(variable)


def test_values_keep_their_layer_axis():
    state = nnx.State({"w": _variable(("stack", "x"), (3, 2))})
    assert jax.tree.leaves(scan_axis.to_layer(state, RECORDED))[0].shape == (3, 2)
