import flax.linen as nn
import hypothesis.strategies as st
import pytest
from hypothesis import given
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from nnxlab import devices, rules
from nnxlab.rules import ShardingError

NAMES = sorted({name for name, _ in rules.MAXTEXT_RULES})
MESHES = ["fsdp=8", "fsdp=4,tensor=2", "fsdp=2,tensor=2,expert=2", "fsdp=8,tensor=1"]


def _abstract(text):
    axes = devices.parse_mesh(text)
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


names_lists = st.lists(
    st.sampled_from([None, *NAMES]), max_size=5, unique_by=lambda name: name or object()
)


@given(names_lists, st.sampled_from(MESHES))
def test_resolving_is_linens_first_free_match_on_the_axes_of_the_mesh(names, text):
    mesh = _abstract(text)
    ours = rules.resolve(tuple(names), mesh)
    theirs = nn.logical_to_mesh_axes(names, rules=rules.MAXTEXT_RULES) or ()
    assert len(ours) == len(names)
    for mine, full in zip(ours, theirs, strict=True):
        full = () if full is None else (full,) if isinstance(full, str) else full
        kept = tuple(axis for axis in full if mesh.shape.get(axis, 1) > 1)
        assert mine == (None if not kept else kept[0] if len(kept) == 1 else kept)


def test_a_name_that_stands_twice_in_the_rules_falls_back(mesh):
    # 'mlp' takes fsdp_transpose first, so 'embed' must take its second rule.
    both = _abstract("fsdp=4,fsdp_transpose=2")
    assert rules.resolve(("embed", "mlp"), both) == PartitionSpec("fsdp", "fsdp_transpose")


def test_unknown_names_and_mesh_axes_are_named(mesh):
    with pytest.raises(ShardingError, match="no rule for logical axis 'emb', 'x'"):
        rules.resolve(("emb", "mlp", "x"), mesh)
    with pytest.raises(ShardingError, match="logical axis 'mlp' stands twice"):
        rules.resolve(("mlp", None, "mlp"), mesh)
    with pytest.raises(ShardingError, match="mesh axis 'model' is in no rule"):
        rules.resolve(("embed",), _abstract("model=8"))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (PartitionSpec(), "P()"),
        (PartitionSpec(None), "P(None,)"),
        (PartitionSpec("a", None), "P('a', None)"),
        (PartitionSpec(("a", "b")), "P(('a', 'b'),)"),
    ],
)
def test_specs_read_the_same_in_every_version(spec, text):
    assert rules.spec_text(spec) == text
