import flax.linen as nn
import hypothesis.strategies as st
import jax
import pytest
from hypothesis import given
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from nnxlab import compat, devices, sharding
from nnxlab.model import config, nnx_model

NAMES = sorted({name for name, _ in sharding.MAXTEXT_RULES})
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
    ours = sharding.resolve(tuple(names), mesh)
    theirs = nn.logical_to_mesh_axes(names, rules=sharding.MAXTEXT_RULES) or ()
    assert len(ours) == len(names)
    for mine, full in zip(ours, theirs, strict=True):
        full = () if full is None else (full,) if isinstance(full, str) else full
        kept = tuple(axis for axis in full if mesh.shape.get(axis, 1) > 1)
        assert mine == (None if not kept else kept[0] if len(kept) == 1 else kept)


def test_a_name_that_stands_twice_in_the_rules_falls_back(mesh):
    # 'mlp' takes fsdp_transpose first, so 'embed' must take its second rule.
    both = _abstract("fsdp=4,fsdp_transpose=2")
    assert sharding.resolve(("embed", "mlp"), both) == PartitionSpec("fsdp", "fsdp_transpose")


def test_unknown_names_and_mesh_axes_are_named(mesh):
    with pytest.raises(sharding.ShardingError, match="no rule for logical axis 'emb', 'x'"):
        sharding.resolve(("emb", "mlp", "x"), mesh)
    with pytest.raises(sharding.ShardingError, match="logical axis 'mlp' stands twice"):
        sharding.resolve(("mlp", None, "mlp"), mesh)
    with pytest.raises(sharding.ShardingError, match="mesh axis 'model' is in no rule"):
        sharding.resolve(("embed",), _abstract("model=8"))


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
    assert sharding.spec_text(spec) == text


@pytest.mark.parametrize("text", MESHES[:3])
def test_shard_shapes_are_jaxs(text):
    mesh = devices.mesh(text)
    model = nnx_model.abstract(config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1))
    table = sharding.table(model, mesh).set_index("path")
    for path, placed in sharding.specs(model, mesh).items():
        row = table.loc[path]
        assert isinstance(placed, NamedSharding)
        assert placed.shard_shape(row["shape"]) == row["shard"]
        assert row["bytes"] == 4 * row["elements"]
        assert row["replicated_bytes"] == 8 * row["bytes_per_device"] - row["bytes"]


def test_no_devices_are_needed_for_a_table():
    table = sharding.table(nnx_model.abstract(config.DEEPSEEK3_671B), _abstract("fsdp=512"))
    assert table["elements"].sum() == 671_026_419_200
    assert sharding.unsharded(table)["share"] < 1e-3


def test_every_parameter_that_cannot_be_sharded_is_named_at_once():
    model = nnx_model.abstract(config.DEEPSEEK3_SMALL)
    weights = dict(sharding.variables(model))
    compat.set_logical_axes(weights["decoder.decoder_norm.scale"], ("norm", "embed"))
    compat.set_logical_axes(weights["decoder.logits_dense.kernel"], ("emb", "vocab"))
    with pytest.raises(sharding.ShardingError) as caught:
        sharding.table(model, _abstract("fsdp=3"))
    text = str(caught.value)
    assert "decoder.decoder_norm.scale (32,), names ('norm', 'embed'): 2 names for rank 1" in text
    assert "decoder.logits_dense.kernel (32, 256)" in text and "no rule for logical axis" in text
    assert "token_embedder.embedding" in text and "size 32 is not divisible by 3" in text


def test_unsharded_counts_what_every_device_holds_whole(mesh):
    shapes = {"a": (8, 2), "b": (8, 2), "c": (4,)}
    names = {"a": ("embed", None), "b": (None, None), "c": ("norm",)}
    found = sharding.unsharded(sharding.rows(shapes, names, mesh))
    assert (found["tensors"], found["elements"], found["total_elements"]) == (2, 20, 36)
    assert found["share"] == 20 / 36 and found["maxtext_share"] == 20 / (4 * 36)


def test_the_check_lists_the_largest_offenders_only(mesh):
    shapes = {"large": (64, 2), "middle": (32, 2), "little": (2,), "good": (8, 8)}
    names = {"large": (None,) * 2, "middle": (None,) * 2, "little": (None,)}
    table = sharding.rows(shapes, names | {"good": ("embed", None)}, mesh)
    sharding.check_sharded(table, tolerance=0.9)
    with pytest.raises(sharding.ShardingError) as caught:
        sharding.check_sharded(table, tolerance=0.02, largest=2)
    text = str(caught.value)
    assert text.index("large (64, 2)") < text.index("middle (32, 2)") and "little" not in text
    assert "75.19% of the parameters are replicated, more than 2.00%" in text


def test_every_parameter_belongs_to_a_group():
    counts = sharding.count_by_group(config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1))
    assert "other" not in counts
    assert counts["experts"] == 3 * 8 * 32 * 24 * (3 + 1)


def test_metadata_under_a_mesh_context_is_read_all_the_same(mesh):
    with jax.set_mesh(mesh):
        table = sharding.table(nnx_model.abstract(config.DEEPSEEK3_SMALL), mesh)
    assert len(table) == 32
