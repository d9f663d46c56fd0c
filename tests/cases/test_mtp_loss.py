import numpy as np
import pytest
from flax import nnx

from nnxlab.cases import mtp_loss
from nnxlab.model import config, inputs
from nnxlab.model.sown import MissingCollectionError
from nnxlab.training import norm


@pytest.fixture(scope="module")
def results(sizes, batch):
    return mtp_loss.experiment(sizes, batch)


def test_broken_is_exactly_zero_and_raises_nothing(results):
    assert results["broken"].mtp_loss == 0.0


def test_every_mtp_gradient_of_the_broken_step_is_exactly_zero(results):
    gradients = mtp_loss.mtp_gradients(results["broken"])
    assert len(gradients) == 20
    assert not any(np.any(g) for g in gradients.values())


def test_the_broken_total_is_short_by_exactly_the_mtp_term(results):
    broken, fixed = results["broken"], results["fixed"]
    assert broken.loss == broken.lm_loss == fixed.lm_loss
    assert broken.loss + fixed.mtp_loss == fixed.loss


def test_the_fix_equals_linen(results):
    fixed, linen = results["fixed"], results["linen"]
    assert mtp_loss.agrees(fixed.mtp_loss, linen.mtp_loss, 1e-6)
    assert mtp_loss.agrees(fixed.loss, linen.loss, 1e-6)
    for path, gradient in fixed.gradients.items():
        np.testing.assert_allclose(gradient, linen.gradients[path], rtol=1e-4, atol=1e-6)


def test_every_mtp_weight_learns_but_for_the_routing_bias(results):
    still = [p for p, g in mtp_loss.mtp_gradients(results["fixed"]).items() if not np.any(g)]
    assert still == ["mtp_block.mtp_layer_1.mtp_1_transformer_layer.DeepSeekMoeBlock_0."
                     "MoeBlock_0.gate.bias"]  # fmt: skip
    assert norm(mtp_loss.mtp_gradients(results["fixed"]).values()) > 0


@pytest.mark.parametrize("depths", [1, 2])
def test_the_prs_order_gives_the_same_value(depths):
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=depths)
    batch = inputs.synthetic(sizes, batch=2, length=8)
    from nnxlab.model import nnx_model

    model = nnx_model.create(sizes)
    model(*batch)
    in_pr = mtp_loss.fixed_as_in_pr(model)
    model(*batch)
    assert float(in_pr) == float(mtp_loss.fixed(model)) > 0
    model(*batch)
    assert float(mtp_loss.broken(model)) == 0.0


class Forgetful(nnx.Module):
    """A forward that sows nothing."""

    def __init__(self, sizes):
        self.config = sizes


def test_a_missing_collection_is_zero_in_the_pr_and_an_error_here(sizes):
    # F20: the helper that returns 0.0 would hide the bug again.
    assert float(mtp_loss.fixed_as_in_pr(Forgetful(sizes))) == 0.0
    with pytest.raises(MissingCollectionError, match="mtp_losses: mtp_block.losses"):
        mtp_loss.fixed(Forgetful(sizes))
