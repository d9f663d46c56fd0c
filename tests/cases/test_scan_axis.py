import jax
import pytest
from flax import nnx

from nnxlab import sharding
from nnxlab.cases import scan_axis
from nnxlab.model import config, inputs, nnx_model
from nnxlab.model.scan_axis import POSITION_KEY, ScanAxis, dotted

TINY = config.DEEPSEEK3_TINY


@pytest.fixture(scope="module")
def broken(mesh):
    return scan_axis.before_and_after(TINY, mesh, scan_axis.BROKEN)


@pytest.fixture(scope="module")
def fixed(mesh):
    return scan_axis.before_and_after(TINY, mesh, scan_axis.FIXED)


def test_every_row_equals_maxtexts(broken, maxtext_table):
    ours = broken.set_index("path")
    assert set(ours.index) == {row["path"] for row in maxtext_table["table"]}
    for row in maxtext_table["table"]:
        mine = ours.loc[row["path"]]
        assert list(mine["shape"]) == row["shape"]
        assert list(mine["names"]) == row["names_before"]
        assert list(mine["names_after"]) == row["names_after_broken"]
        assert (mine["spec"], mine["spec_after"]) == (row["spec_before"], row["spec_after_broken"])


def test_partition_name_and_position_are_maxtexts(maxtext_table):
    params = nnx.to_flat_state(nnx.state(nnx_model.abstract(TINY), nnx.Param))
    stored = {dotted(path): v.get_metadata() for path, v in params}
    for row in maxtext_table["table"]:
        mine = stored[row["path"]]
        assert mine.get(nnx.PARTITION_NAME) == row["partition_name"]
        assert mine.get(POSITION_KEY) == row["param_scan_axis"]


def test_the_totals_are_maxtexts(broken, maxtext_table):
    before, after = sharding.unsharded(broken), scan_axis.check_after(broken)
    theirs = maxtext_table["unsharded"]
    assert (before["tensors"], before["elements"]) == tuple(theirs["before"].values())
    assert (after["tensors"], after["elements"]) == tuple(theirs["broken"].values())
    assert after["total_elements"] == theirs["total_elements"]
    assert int(broken["bytes"].sum()) == theirs["total_bytes"]
    assert 100 * after["maxtext_share"] == pytest.approx(
        theirs["maxtext_reports_broken_percent"], abs=1e-4
    )
    assert 100 * after["share"] == pytest.approx(
        theirs["share_of_elements_broken_percent"], abs=1e-4
    )


def test_the_fix_renames_nothing(fixed):
    assert fixed["names"].equals(fixed["names_after"])
    assert fixed["spec"].equals(fixed["spec_after"])


def test_one_mtp_layer_adds_twenty_variables_that_keep_their_names(mesh, maxtext_table):
    table = scan_axis.before_and_after(TINY.replace(mtp_num_layers=1), mesh, scan_axis.BROKEN)
    after, theirs = scan_axis.check_after(table), maxtext_table["with_mtp_1"]
    changed = table[table["names"] != table["names_after"]]
    assert (len(table), len(changed)) == (theirs["variables"], theirs["changed_broken"])
    assert 100 * after["maxtext_share"] == pytest.approx(
        theirs["maxtext_reports_broken_percent"], abs=1e-4
    )
    assert 100 * after["share"] == pytest.approx(
        theirs["share_of_elements_broken_percent"], abs=1e-4
    )


def test_a_second_forward_changes_nothing_more(mesh):
    once, twice = (
        sharding.table(scan_axis.model_after(TINY, scan_axis.BROKEN, n), mesh) for n in (1, 2)
    )
    assert once.equals(twice)


def test_a_snapshot_before_the_first_step_is_clean_and_one_after_quantizing_is_not(mesh):
    snapshot = sharding.table(nnx_model.abstract(TINY, trip=scan_axis.BROKEN), mesh)
    sharding.check_sharded(snapshot, scan_axis.TOLERANCE)
    inside = sharding.table(scan_axis.quantized_in_construction(TINY, scan_axis.BROKEN), mesh)
    assert sharding.unsharded(inside)["maxtext_share"] > scan_axis.TOLERANCE
    with pytest.raises(sharding.ShardingError, match=r"10\.40% of the parameters are replicated"):
        sharding.check_sharded(inside, scan_axis.TOLERANCE)
    sound = sharding.table(scan_axis.quantized_in_construction(TINY, scan_axis.FIXED), mesh)
    sharding.check_sharded(sound, scan_axis.TOLERANCE)


def test_the_name_of_the_stack_decides():
    assert scan_axis.immune_stack(TINY, "layers")
    assert not scan_axis.immune_stack(TINY, "moe_layers")


def test_the_traced_program_does_not_grow_with_the_layers():
    def equations(layers):
        model = nnx_model.abstract(TINY.replace(num_decoder_layers=layers))
        graphdef, state = nnx.split(model)
        batch = inputs.dummy(TINY)[:3]
        return len(str(jax.make_jaxpr(lambda s: nnx.merge(graphdef, s)(*batch))(state)))

    assert equations(610) < 1.02 * equations(61)


def test_steps_tell_the_story_of_one_name():
    table = scan_axis.steps(("embed", "dense_layers", "mlp"), ScanAxis("dense_layers", 1))
    assert table["broken"].tolist()[1:] == [
        ("dense_layers", "mlp"),
        ("dense_layers", "layers", "mlp"),
    ]
    assert table["fixed"].tolist()[1:] == [("embed", "mlp"), ("embed", "dense_layers", "mlp")]


def test_the_verdict_passes_on_both_sizes(mesh):
    for sizes in (TINY, config.DEEPSEEK3_SMALL):
        assert scan_axis.run(sizes, mesh).verdict == "PASS"
