import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import audit
from nnxlab.model import config, inputs, nnx_model, port, sown
from nnxlab.training import mtp_term


@pytest.fixture(scope="module")
def forward(sizes, batch):
    """Logits of a config from the weights of the plain one, and how it changes with options."""
    weights = port.to_linen(nnx_model.create(sizes))

    def run(**changes):
        model = nnx_model.create(sizes.replace(**changes))
        port.from_linen(_moved(weights, model), model)
        graphdef, state = nnx.split(model)
        return jax.jit(lambda s: nnx.merge(graphdef, s, copy=True)(*batch))(state)

    return run


def _moved(weights, model):
    """Linen weights stacked at 1, as Linen would stack them for ``model``."""
    from nnxlab.model.linen_model import scan_axis
    from nnxlab.model.scan_axis import position_for

    def move(path, value):
        if "_layers" not in jax.tree_util.keystr(path):
            return value
        return np.moveaxis(value, 1, position_for(scan_axis(model.config), value.ndim - 1))

    return jax.tree_util.tree_map_with_path(move, weights)


@pytest.fixture(scope="module")
def plain(forward):
    return forward()


@pytest.mark.parametrize("policy", ["full", "minimal"])
def test_remat_gives_the_same_logits(forward, plain, policy):
    np.testing.assert_allclose(forward(remat_policy=policy), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 3])
def test_any_scan_axis_gives_the_same_logits(forward, plain, axis):
    np.testing.assert_allclose(forward(param_scan_axis=axis), plain, rtol=1e-5, atol=1e-5)


def test_bfloat16_activations_stay_near(forward, plain):
    rough = forward(dtype="bfloat16")
    assert rough.dtype == jnp.float32 and bool((rough != plain).any())
    # The median, since a token whose second and third expert nearly tie may take the other one.
    assert float(jnp.median(jnp.abs(rough - plain))) < 0.05 * float(plain.std())


def test_each_depth_sows_one_entry():
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=2)
    model = nnx_model.abstract(sizes)

    def run(model):
        model(*inputs.dummy(sizes))
        return sown.collect(model, sown.mtp_losses, sown.mtp_acceptance)

    block = nnx.eval_shape(run, model)["mtp_losses"]["mtp_block"]
    assert len(block["losses"].get_value()) == len(block["weights"].get_value()) == 2


def test_a_forward_leaves_metadata_alone_and_nothing_behind(sizes):
    model = nnx_model.abstract(sizes)
    audit.scan_metadata.check_forward(model, lambda m: m(*inputs.dummy(sizes)))

    def run(model):
        model(*inputs.dummy(sizes))
        mtp_term(model)
        return model

    after = nnx.eval_shape(run, model)
    assert nnx.to_flat_state(nnx.state(after)).paths == nnx.to_flat_state(nnx.state(model)).paths


def test_without_mtp_layers_no_targets_are_needed_and_the_term_is_0():
    sizes = config.DEEPSEEK3_SMALL
    model = nnx_model.create(sizes)
    model(*inputs.dummy(sizes))
    assert float(mtp_term(model)) == 0.0


def test_no_shared_expert_is_a_size_too():
    sizes = config.DEEPSEEK3_SMALL.replace(num_shared_experts=0)
    assert not [p for p in port.shapes(nnx_model.abstract(sizes)) if "shared" in p]
