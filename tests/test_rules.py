import json
import sys

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


axes_lists = st.one_of(
    st.sampled_from(["fsdp", "tensor"]),
    st.lists(st.sampled_from(["fsdp", "tensor", "expert"]), unique=True),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), axes_lists), min_size=1))
def test_rules_read_back_from_json_and_yaml(tmp_path_factory, pairs):
    yaml = pytest.importorskip("yaml")
    folder = tmp_path_factory.mktemp("rules")
    plain = [list(pair) for pair in pairs]
    (folder / "a.json").write_text(json.dumps(plain))
    (folder / "b.json").write_text(json.dumps({"logical_axis_rules": plain, "more": 1}))
    (folder / "c.yml").write_text(yaml.safe_dump({"logical_axis_rules": plain}))
    expected = tuple((n, axes if isinstance(axes, str) else tuple(axes)) for n, axes in pairs)
    for name in ("a.json", "b.json", "c.yml"):
        assert rules.read(folder / name) == expected


def test_maxtexts_rules_from_a_file_shard_as_the_built_in_ones(tmp_path):
    file = tmp_path / "maxtext.json"
    file.write_text(json.dumps(rules.MAXTEXT_RULES))
    mesh = _abstract("fsdp=2,tensor=2,expert=2")
    for name in NAMES:
        assert rules.resolve((name,), mesh, rules.read(file)) == rules.resolve((name,), mesh)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "", "not JSON"),
        ("a.json", "[[", "not JSON"),
        ("a.json", "[]", "no list of rules"),
        ("a.json", "3", "no list of rules"),
        ("a.json", '{"rules": []}', "under logical_axis_rules"),
        ("a.yml", "", "no list of rules"),
        ("a.yml", "[", "not YAML"),
        ("a.txt", "[]", "ends in none of .json, .yml, .yaml"),
    ],
)
def test_a_file_without_rules_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        rules.read(tmp_path / name)
    assert name in str(error.value)


def test_every_fault_of_a_rule_file_is_named_at_once(tmp_path):
    file = tmp_path / "bad.json"
    bad = [["embed"], [3, []], ["mlp", 7], ["norm", [1]], ["exp", ["a", "a"]], ["kv", []], "heads"]
    file.write_text(json.dumps(bad))
    with pytest.raises(ValueError, match="bad.json: not as in") as error:
        rules.read(file)
    for number, fault in {
        1: "not a pair",
        2: "the name is no text",
        3: "the axes are neither",
        4: "the axes are neither",
        5: "a mesh axis stands twice",
        7: "not a pair",
    }.items():
        assert f"rule {number}, {bad[number - 1]!r}: {fault}" in str(error.value)
    assert "rule 6" not in str(error.value)


def test_a_missing_file_and_a_missing_yaml_are_said(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="none.json"):
        rules.read(tmp_path / "none.json")
    (tmp_path / "a.yml").write_text("[]")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match="needs PyYAML.*JSON needs nothing"):
        rules.read(tmp_path / "a.yml")


def test_an_axis_that_only_splits_the_batch_is_no_stranger():
    assert rules.resolve(("embed", "mlp"), _abstract("data=2,fsdp=4")) == PartitionSpec(
        "fsdp", None
    )
    with pytest.raises(ShardingError, match="mesh axis 'model' is in no rule"):
        rules.resolve(("embed",), _abstract("model=2,fsdp=4"))
