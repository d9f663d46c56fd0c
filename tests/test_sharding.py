import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from nnxlab import compat, devices, sharding
from nnxlab.model import config, nnx_model
from nnxlab.rules import ShardingError
from nnxlab.scale import price

MESHES = ["fsdp=8", "fsdp=4,tensor=2", "fsdp=2,tensor=2,expert=2"]


def _abstract(text):
    axes = devices.parse_mesh(text)
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


@pytest.mark.parametrize("text", MESHES)
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
    with pytest.raises(ShardingError) as caught:
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
    with pytest.raises(ShardingError) as caught:
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


def test_an_even_share_is_1_where_all_is_sharded_and_the_mesh_where_nothing_is(mesh):
    names = {"a": ("embed", "mlp"), "b": (None, "mlp")}
    whole = sharding.rows({"a": (8, 4), "b": (8, 4)}, names, mesh)
    assert sharding.times_even_share(whole[whole["path"] == "a"], 8) == 1.0
    assert sharding.times_even_share(whole[whole["path"] == "b"], 8) == 8.0
    assert sharding.times_even_share(whole, 8) == 4.5
    sharding.check_even(whole, 8, limit=4.5)
    with pytest.raises(ShardingError, match="holds 4.5 times its even share") as caught:
        sharding.check_even(whole, 8, limit=4.4, largest=1)
    assert "  b (8, 4), names (None, 'mlp'), P(None, None)" in str(caught.value)


def test_at_671b_the_share_of_elements_hides_what_the_even_share_shows():
    weights, mesh = price.weights(config.DEEPSEEK3_671B), price.abstract_mesh({"fsdp": 512})
    good, bad = (
        sharding.rows(weights.shapes, names, mesh) for names in (weights.declared, weights.after)
    )
    sharding.check_sharded(bad, tolerance=0.02)
    sharding.check_even(good, 512)
    with pytest.raises(ShardingError, match="each of 512 devices holds 6.2 times"):
        sharding.check_even(bad, 512)
