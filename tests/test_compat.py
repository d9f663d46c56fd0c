import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab import compat, versions

GOOD = {"jax": "0.10.2", "flax": "0.12.8", "qwix": "0.1.8"}


def _with(**metadata):
    variable = nnx.Param(jnp.zeros((2, 2)))
    return variable.replace(**metadata)


@pytest.mark.parametrize("names", [("a", None), ["a", None], PartitionSpec("a", None)])
def test_names_are_read_in_every_form(names):
    assert compat.logical_axes(_with(out_sharding=names)) == ("a", None)


def test_a_named_sharding_is_read_by_its_spec(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))
    assert compat.logical_axes(_with(out_sharding=sharding)) == ("fsdp",)


def test_no_names_are_none_and_not_replicated():
    assert compat.logical_axes(nnx.Param(jnp.zeros(2))) is None


@pytest.mark.parametrize("key", compat.SHARDING_KEYS)
def test_names_are_read_under_the_key_of_every_flax(key, monkeypatch):
    # F14 (tpu-inference #3004): read under another version's key, every weight is replicated.
    variable = nnx.Param(jnp.zeros((2, 2)))
    monkeypatch.setattr(type(variable), "get_metadata", lambda self: {key: ("a", "b")})
    assert compat.logical_axes(variable) == ("a", "b")


def test_keys_that_disagree_raise(monkeypatch):
    variable = nnx.Param(jnp.zeros((2, 2)))
    stored = {"out_sharding": ("a", "b"), "sharding_names": ("b", "a")}
    monkeypatch.setattr(type(variable), "get_metadata", lambda self: stored)
    with pytest.raises(ValueError, match="disagrees with itself"):
        compat.logical_axes(variable)


def test_names_can_be_set_and_replaced():
    variable = compat.param(jnp.zeros((2, 2)), ("a", "b"))
    assert compat.logical_axes(compat.with_logical_axes(variable, ("c", "d"))) == ("c", "d")
    assert compat.logical_axes(variable) == ("a", "b")
    compat.set_logical_axes(variable, ("e", None))
    assert compat.logical_axes(variable) == ("e", None)


@pytest.mark.parametrize("keys", [("sharding_names",), ("out_sharding", "sharding_names")])
def test_new_names_go_to_every_key_in_use_and_to_no_other(keys):
    # MaxText's linen-style layers carry sharding_names under every flax.
    stored = {key: ("a", "b") for key in keys}
    variable = compat.with_logical_axes(_with(**stored), ("c", None))
    assert compat.logical_axes(variable) == ("c", None)
    kept = {key: variable.get_metadata().get(key) for key in compat.SHARDING_KEYS}
    assert {key for key, names in kept.items() if names is not None} == set(keys)


def test_keys_that_agree_in_different_forms_are_read():
    both = _with(out_sharding=PartitionSpec("a", None), sharding_names=("a", None))
    assert compat.logical_axes(both) == ("a", None)


def test_a_parameter_keeps_logical_names_on_a_mesh_without_them(mesh):
    with jax.set_mesh(mesh):
        variable = compat.param(jnp.zeros((8, 2)), ("embed", "mlp"))
    assert compat.logical_axes(variable) == ("embed", "mlp")
    assert variable.get_value().sharding.is_fully_replicated


def test_shapes_are_evaluated_where_a_mesh_is_set_and_that_one_is_back_afterwards(mesh):
    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match="embed"):
            nnx.eval_shape(lambda x: compat.param(x, ("embed", "mlp")), jnp.zeros((8, 2)))
        variable = compat.eval_shape(lambda x: compat.param(x, ("embed", "mlp")), jnp.zeros((8, 2)))
        assert dict(jax.sharding.get_abstract_mesh().shape) == {"fsdp": 8}
    assert compat.logical_axes(variable) == ("embed", "mlp") and variable.shape == (8, 2)


def test_supported_versions_pass():
    versions.check_versions(GOOD, (3, 11))
    versions.check_versions()


def test_every_unsupported_version_is_in_one_error():
    with pytest.raises(versions.UnsupportedVersionError) as caught:
        versions.check_versions({"jax": "0.7.2", "flax": "0.12.3"}, (3, 10))
    for part in (
        "Python 3.10 is not one of 3.11, 3.12, 3.13",
        "jax 0.7.2 is too old (needs >= 0.10)",
        "flax 0.12.3 is too old (needs >= 0.12.4)",
        "qwix is not installed (needs >= 0.1.6)",
        "pip install",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("version", ["0.12.4", "0.12.4.dev1", "0.13", "1.0.0rc1"])
def test_versions_at_or_past_the_least_pass(version):
    versions.check_versions(GOOD | {"flax": version}, (3, 12))
