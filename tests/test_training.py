import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import training
from nnxlab.model import inputs, nnx_model, port
from nnxlab.model.sown import MissingCollectionError


@pytest.mark.parametrize("run", ["nnx", "linen"])
def test_a_missing_input_is_named_before_anything_runs(sizes, run):
    lacking = inputs.dummy(sizes)._replace(targets=None)
    model = nnx_model.abstract(sizes)
    with pytest.raises(inputs.MissingInputError, match="needs targets"):
        if run == "nnx":
            training.nnx_loss_and_gradients(model, lacking)
        else:
            training.linen_loss_and_gradients(sizes, {"params": {}}, lacking)


def test_the_model_is_left_as_it_was(model, batch):
    before = {p: np.asarray(v.get_value()) for p, v in nnx.to_flat_state(nnx.state(model))}
    result = training.nnx_loss_and_gradients(model, batch)
    after = dict(nnx.to_flat_state(nnx.state(model)))
    assert before.keys() == after.keys()
    assert all((before[p] == after[p].get_value()).all() for p in before)
    assert result.gradients.keys() == port.shapes(model).keys()
    assert result.loss == result.lm_loss + result.mtp_loss


def test_merging_without_a_copy_raises_what_the_helper_avoids(sizes, model):
    # F6 (flax #5050): a closed-over model under jax.grad, merged without copy=True.
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    model.count = nnx.Variable(jnp.zeros(()))
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def total(params, copy):
        merged = nnx.merge(graphdef, params, rest, copy=copy)
        merged.count.set_value(merged.count.get_value() + 1)
        return sum(jnp.sum(v.get_value()) for _, v in nnx.to_flat_state(params))

    jax.grad(lambda p: total(p, True))(params)
    with pytest.raises(nnx.errors.TraceContextError if hasattr(nnx, "errors") else Exception):
        jax.grad(lambda p: total(p, False))(params)


def test_the_sound_term_takes_types_in_any_order(model, batch):
    model(*batch)
    term = training.mtp_term._replace(
        collect=lambda m: training.sown.collect(m, *reversed(training.SOWN_TYPES))
    )
    value = term(model)
    model(*batch)
    assert float(value) == float(training.mtp_term(model)) > 0


def test_a_forward_that_was_not_run_is_an_error(model):
    with pytest.raises(MissingCollectionError):
        training.mtp_term(model)


def test_norm_is_over_all_elements():
    assert training.norm([np.array([3.0]), np.array([[4.0]])]) == 5.0
    assert training.norm([]) == 0.0
