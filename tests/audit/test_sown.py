import jax.numpy as jnp
import pytest
from flax import nnx

from nnxlab import audit
from nnxlab.cases.mtp_loss import GENERIC_FIRST, SPECIFIC_FIRST
from nnxlab.model import config, inputs, nnx_model


class Parent(nnx.Intermediate):
    pass


class Child(Parent):
    pass


class Plain(nnx.Variable):
    pass


class Sower(nnx.Module):
    def __init__(self, *kinds):
        self.kinds = kinds
        self.weight = nnx.Param(jnp.ones(2))

    def __call__(self, x):
        for number, kind in enumerate(self.kinds):
            self.sow(kind, f"value_{number}", x)
        return x


def _ledger(kinds, filters):
    found = audit.sown.ledger(Sower(*kinds), filters, jnp.ones(2))
    return found.set_index("path")


def test_a_subclass_popped_after_its_parent_is_named():
    row = _ledger([Child], (nnx.Intermediate, Child)).loc["value_0"]
    assert (row["taken_by"], row["belongs_to"]) == ("Intermediate", "Child")
    assert row["fault"] == "Intermediate takes it before Child is asked"


def test_the_closest_of_three_generations_is_where_it_belongs():
    row = _ledger([Child], (Parent, nnx.Intermediate, Child)).loc["value_0"]
    assert (row["taken_by"], row["belongs_to"]) == ("Parent", "Child")
    assert not _ledger([Child], (Child, Parent, nnx.Intermediate)).loc["value_0", "fault"]


def test_a_plain_variable_is_named_as_left_in_the_model():
    # F1: the Intermediate pop misses it and it leaks into the train state.
    row = _ledger([Plain], (nnx.Intermediate,)).loc["value_0"]
    assert row["taken_by"] == "" and row["fault"] == "stays in the model; pop Plain too"


def test_a_name_given_as_a_string_makes_a_type_that_must_be_popped():
    # F3: sow("my_losses", ...) makes a type of that name, found by no pop of another type.
    row = _ledger(["audit_my_losses"], (nnx.Intermediate,)).loc["value_0"]
    assert row["type"] == "audit_my_losses" and "pop audit_my_losses too" in row["fault"]


def test_a_generic_variable_under_the_generic_filter_is_no_fault():
    assert not _ledger([nnx.Intermediate], (nnx.Intermediate, Child)).loc["value_0", "fault"]


def test_the_model_itself_is_left_alone():
    model = Sower(Child)
    audit.sown.ledger(model, (Child,), jnp.ones(2))
    assert [path for path, _ in nnx.to_flat_state(nnx.state(model))] == [("weight",)]


def test_a_model_that_has_run_already_is_judged_as_a_fresh_one():
    model = Sower(Child, Plain)
    fresh = audit.sown.ledger(model, (nnx.Intermediate, Child), jnp.ones(2))
    model(jnp.ones(2))
    again = audit.sown.ledger(model, (nnx.Intermediate, Child), jnp.ones(2))
    assert again.equals(fresh) and len(again) == 2
    with pytest.raises(audit.sown.SownError, match=r"value_0 \(Child\)"):
        audit.sown.check(model, (nnx.Intermediate, Child), jnp.ones(2))


def test_nothing_sown_is_no_pass():
    with pytest.raises(audit.sown.SownError, match="the forward sowed nothing"):
        audit.sown.check(Sower(), (nnx.Intermediate,), jnp.ones(2))


def test_check_names_every_variable_at_once():
    with pytest.raises(audit.sown.SownError) as caught:
        audit.sown.check(Sower(Child, Plain), (nnx.Intermediate, Child), jnp.ones(2))
    for line in ("value_0 (Child)", "value_1 (Plain)"):
        assert line in str(caught.value)


def test_the_order_before_the_pr_is_caught_and_the_prs_is_not():
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1)
    model, batch = nnx_model.abstract(sizes), inputs.dummy(sizes)
    audit.sown.check(model, SPECIFIC_FIRST, *batch)
    with pytest.raises(audit.sown.SownError, match=r"mtp_block\.losses \(mtp_losses\)"):
        audit.sown.check(model, GENERIC_FIRST, *batch)
