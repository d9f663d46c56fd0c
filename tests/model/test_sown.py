import itertools

import jax.numpy as jnp
import pytest
from flax import nnx

from nnxlab.model import sown


class Parent(nnx.Intermediate):
    pass


class Child(Parent):
    pass


ORDERS = list(itertools.permutations([nnx.Intermediate, Parent, Child]))


class Sower(nnx.Module):
    def __call__(self):
        self.sow(nnx.Intermediate, "generic", jnp.zeros(()))
        self.sow(Parent, "parent", jnp.zeros(()))
        self.sow(Child, "child", jnp.zeros(()))


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_types_collects_the_same(order):
    model = Sower()
    model()
    found = sown.collect(model, *order)
    assert {name: [p for p, _ in nnx.to_flat_state(s)] for name, s in found.items()} == {
        "Intermediate": [("generic",)],
        "Parent": [("parent",)],
        "Child": [("child",)],
    }
    assert not nnx.to_flat_state(nnx.state(model))


def test_no_type_comes_after_its_parent_even_in_a_diamond():
    types = (nnx.Intermediate, Parent, Left, Right, Both)
    for order in itertools.permutations(types):
        ordered = sown.most_derived_first(order)
        for early, late in itertools.combinations(ordered, 2):
            assert not (issubclass(late, early) and late is not early)


def test_a_type_that_is_not_listed_comes_with_its_nearest_parent():
    for order in itertools.permutations([nnx.Intermediate, Parent]):
        model = Sower()
        model()
        found = sown.collect(model, *order)
        assert {p for p, _ in nnx.to_flat_state(found["Parent"])} == {("parent",), ("child",)}


def test_a_type_given_twice_keeps_what_was_sown():
    model = Sower()
    model()
    found = sown.collect(model, Child, nnx.Intermediate, Child)
    assert [p for p, _ in nnx.to_flat_state(found["Child"])] == [("child",)]


class Left(Parent):
    pass


class Right(Parent):
    pass


class Both(Left, Right):
    pass


class BothSower(nnx.Module):
    def __call__(self):
        self.sow(Both, "both", jnp.zeros(()))


def test_every_order_collects_a_child_of_two_listed_types_the_same():
    found = []
    for order in ((Left, Right), (Right, Left)):
        model = BothSower()
        model()
        collected = sown.collect(model, *order)
        found.append({name: len(nnx.to_flat_state(s)) for name, s in collected.items()})
    assert found[0] == found[1]


def test_a_missing_collection_is_named_with_what_there_is():
    model = Sower()
    model()
    collected = sown.collect(model, Child)
    with pytest.raises(sown.MissingCollectionError) as caught:
        sown.required(collected, "mtp_losses", "mtp_block", "losses")
    assert "mtp_losses: mtp_block.losses" in str(caught.value)
    assert "collected were Child: child" in str(caught.value)


def test_a_missing_variable_of_a_filled_collection_is_named():
    model = Sower()
    model()
    collected = sown.collect(model, Child, nnx.Intermediate)
    with pytest.raises(sown.MissingCollectionError, match="Child: other was promised"):
        sown.required(collected, "Child", "other")
    assert len(sown.required(collected, "Child", "child")) == 1


def test_nothing_at_all_is_said_in_words():
    with pytest.raises(sown.MissingCollectionError, match="collected were no variables at all"):
        sown.required({}, "mtp_losses", "mtp_block", "losses")


def test_two_types_of_one_name_are_refused():
    other = type("Child", (nnx.Intermediate,), {})
    with pytest.raises(ValueError, match="share a name: Child, Child"):
        sown.collect(Sower(), Child, other)
