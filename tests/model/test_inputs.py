import jax.numpy as jnp
import pytest

from nnxlab.model import config, inputs

PLAIN = config.DEEPSEEK3_SMALL
MTP = PLAIN.replace(mtp_num_layers=1)


def test_targets_are_needed_with_mtp_layers_only():
    assert "targets" in inputs.needed(MTP) and "targets" not in inputs.needed(PLAIN)
    assert inputs.dummy(PLAIN).targets is None
    inputs.check(PLAIN, inputs.dummy(PLAIN))
    inputs.check(MTP, inputs.dummy(MTP))


def test_every_missing_input_is_named():
    with pytest.raises(inputs.MissingInputError, match="needs tokens, targets, target_mask: with"):
        inputs.check(MTP, inputs.dummy(PLAIN)._replace(tokens=None))


@pytest.mark.parametrize("field", inputs.Batch._fields)
def test_shapes_that_disagree_are_named(field):
    batch = inputs.dummy(MTP)._replace(**{field: jnp.ones((2, 3), jnp.int32)})
    with pytest.raises(ValueError, match=rf"one shape.*'{field}': \(2, 3\)"):
        inputs.check(MTP, batch)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 1), ()])
def test_inputs_of_another_rank_are_refused(shape):
    batch = inputs.Batch(*[jnp.ones(shape, jnp.int32)] * 5)
    with pytest.raises(ValueError, match=r"one shape \[batch, length\]"):
        inputs.check(MTP, batch)


def test_the_message_names_the_way_out_and_the_way_works():
    with pytest.raises(inputs.MissingInputError, match=r"inputs\.dummy\(config\) makes a batch"):
        inputs.check(MTP, inputs.Batch(*[None] * 5))
    inputs.check(MTP, inputs.dummy(MTP, batch=2, length=3))


def test_batches_are_int32_and_positions_count_from_0():
    for batch in (inputs.dummy(MTP), inputs.synthetic(MTP)):
        assert {x.dtype for x in batch} == {jnp.dtype(jnp.int32)}
    assert inputs.synthetic(MTP, 2, 4).positions.tolist() == [[0, 1, 2, 3]] * 2
    tokens = inputs.synthetic(MTP, 64, 64).tokens
    assert int(tokens.min()) >= 0 and int(tokens.max()) < MTP.vocab_size


def test_synthetic_targets_are_the_next_tokens_and_follow_the_seed():
    batch = inputs.synthetic(MTP, batch=2, length=5, seed=3)
    assert (batch.tokens[:, 1:] == batch.targets[:, :-1]).all()
    assert (inputs.synthetic(MTP, 2, 5, seed=3).tokens == batch.tokens).all()
    assert (inputs.synthetic(MTP, 2, 5, seed=4).tokens != batch.tokens).any()
