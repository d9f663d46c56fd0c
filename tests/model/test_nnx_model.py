import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nnxlab import audit, compat, devices, sharding
from nnxlab.model import config, inputs, loss, nnx_model, port, sown
from nnxlab.model.scan_axis import ScanAxisError
from nnxlab.training import mtp_term

# What one depth sows on a batch of shape (1, 8).
SOWN = {
    "mtp_losses": {"losses": (), "weights": ()},
    "mtp_acceptance": {"predictions": (1, 8), "mask": (1, 8)},
}


@pytest.fixture(scope="module")
def forward(sizes, filled):
    """Logits of a config on a batch, from the weights of the plain one."""
    weights = dict(sharding.variables(nnx_model.create(sizes)))
    weights = {path: np.asarray(variable[...]) for path, variable in weights.items()}

    def compiled(scores=False, **changes):
        model = filled(sizes.replace(**changes))
        port.load(model, weights, axis=sizes.param_scan_axis)
        graphdef, state = nnx.split(model)
        run = jax.jit(
            lambda state, batch: nnx.merge(graphdef, state, copy=True)(*batch, scores=scores),
            compiler_options=devices.one_shot(),
        )
        return lambda batch: jax.device_get(run(state, batch))

    return compiled


@pytest.fixture(scope="module")
def plain_forward(forward):
    return forward()


@pytest.fixture(scope="module")
def plain(plain_forward, batch):
    return plain_forward(batch)


@pytest.mark.parametrize("policy", ["full", "minimal"])
def test_remat_gives_the_same_logits(forward, plain, batch, policy):
    logits = forward(remat_policy=policy)(batch)
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 2, 3, -1])
def test_any_scan_axis_gives_the_same_logits(forward, plain, batch, axis):
    logits = forward(param_scan_axis=axis)(batch)
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-5)


def test_a_later_token_changes_no_earlier_logits(plain_forward, plain, batch):
    tokens = batch.tokens.at[:, 9].set((batch.tokens[:, 9] + 1) % 256)
    changed = plain_forward(batch._replace(tokens=tokens)) != plain
    assert not changed[:, :9].any() and changed[:, 9:].any(axis=(0, 2)).all()


def test_a_packed_document_does_not_see_the_one_before(plain_forward, batch):
    segments = jnp.where(jnp.arange(16) < 6, 1, 2) * jnp.ones_like(batch.tokens)
    packed = batch._replace(segment_ids=segments)
    other = packed._replace(tokens=packed.tokens.at[:, :6].set(0))
    changed = plain_forward(other) != plain_forward(packed)
    assert changed[:, :6].any() and not changed[:, 6:].any()


def test_scores_are_those_of_the_logits(forward, plain, batch):
    # The second half of each row is padding, which must not count.
    padded = batch._replace(target_mask=jnp.where(jnp.arange(16) < 8, batch.target_mask, 0))
    scores = forward(scores=True)(padded)
    expected = np.asarray(loss.cross_entropy(plain, batch.targets))[:, :8].sum()
    assert float(scores.losses) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(scores.predictions, plain.argmax(-1))


def test_targets_are_not_seen_by_the_main_head(plain_forward, plain, batch):
    other = batch._replace(
        targets=jnp.zeros_like(batch.targets), target_mask=jnp.zeros_like(batch.target_mask)
    )
    np.testing.assert_array_equal(plain_forward(other), plain)


def test_bfloat16_activations_stay_near(forward, plain, batch):
    rough = forward(dtype="bfloat16")(batch)
    assert rough.dtype == jnp.float32 and bool((rough != plain).any())
    # The median, since a token whose second and third expert nearly tie may take the other one.
    assert np.median(np.abs(rough - plain)) < 0.05 * plain.std()


def test_each_depth_sows_one_entry():
    sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=2)
    model = nnx_model.abstract(sizes)

    def run(model):
        model(*inputs.dummy(sizes))
        return sown.collect(model, sown.mtp_losses, sown.mtp_acceptance)

    collected = compat.eval_shape(run, model)
    for name, parts in SOWN.items():
        for part, shape in parts.items():
            entries = collected[name]["mtp_block"][part].get_value()
            assert [entry.shape for entry in entries] == [shape, shape]


def test_a_forward_leaves_metadata_alone_and_nothing_behind(sizes):
    model = nnx_model.abstract(sizes)
    audit.scan_metadata.check_forward(model, lambda m: m(*inputs.dummy(sizes)))

    def run(model):
        model(*inputs.dummy(sizes))
        mtp_term(model)
        return model

    after = compat.eval_shape(run, model)
    assert nnx.to_flat_state(nnx.state(after)).paths == nnx.to_flat_state(nnx.state(model)).paths


def test_a_forward_adds_the_four_sown_variables_and_keeps_all_metadata(sizes):
    model = nnx_model.abstract(sizes)

    def run(model):
        model(*inputs.dummy(sizes))
        return model

    states = (nnx.state(m) for m in (model, compat.eval_shape(run, model)))
    before, after = (dict(nnx.to_flat_state(state)) for state in states)
    new = {path: type(after[path]).__name__ for path in after.keys() - before.keys()}
    assert new == {("mtp_block", part): name for name, parts in SOWN.items() for part in parts}
    for path, variable in before.items():
        assert type(after[path]) is nnx.Param
        assert after[path].get_metadata() == variable.get_metadata()


def test_inconsistent_metadata_is_named_by_its_whole_path(sizes):
    model = nnx_model.abstract(sizes)
    compat.set_logical_axes(model.decoder.moe_layers.self_attention.wq_a.kernel, ("embed",))
    with pytest.raises(ScanAxisError, match=r"decoder\.moe_layers\.self_attention\.wq_a\.kernel"):
        compat.eval_shape(lambda m: m(*inputs.dummy(sizes)), model)


def test_without_mtp_layers_no_targets_are_needed_and_the_term_is_0():
    sizes = config.DEEPSEEK3_SMALL
    model = nnx_model.abstract(sizes)

    def run(model):
        model(*inputs.dummy(sizes))
        return model

    assert port.shapes(compat.eval_shape(run, model)) == port.shapes(model)
    assert float(mtp_term(model)) == 0.0


def test_it_is_called_as_the_batch_is_laid_out():
    parameters = inspect.signature(nnx_model.DeepSeek.__call__).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert tuple(positional[1:]) == inputs.Batch._fields


def test_an_abstract_model_of_671b_allocates_nothing():
    arrays = len(jax.live_arrays())
    model = nnx_model.abstract(config.DEEPSEEK3_671B)
    leaves = jax.tree.leaves(nnx.state(model))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert len(jax.live_arrays()) <= arrays


def test_depths_and_stacks_may_be_missing():
    for dense in (0, 5):
        sizes = config.DEEPSEEK3_SMALL.replace(first_num_dense_layers=dense)
        model = nnx_model.abstract(sizes)
        logits = compat.eval_shape(lambda m, s=sizes: m(*inputs.dummy(s)), model)
        assert logits.shape == (1, 8, 256)
        assert hasattr(model.decoder, "moe_layers") == (dense == 0)
        assert hasattr(model.decoder, "dense_layers") == (dense == 5)


def test_no_shared_expert_is_a_size_too():
    sizes = config.DEEPSEEK3_SMALL.replace(num_shared_experts=0)
    assert not [p for p in port.shapes(nnx_model.abstract(sizes)) if "shared" in p]


def test_scores_without_targets_are_refused_before_anything_is_traced(filled):
    sizes = config.DEEPSEEK3_SMALL
    with pytest.raises(inputs.MissingInputError, match="scores=True needs targets, target_mask"):
        filled(sizes)(*inputs.dummy(sizes), scores=True)
