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


def test_synthetic_targets_are_the_next_tokens_and_follow_the_seed():
    batch = inputs.synthetic(MTP, batch=2, length=5, seed=3)
    assert (batch.tokens[:, 1:] == batch.targets[:, :-1]).all()
    assert (inputs.synthetic(MTP, 2, 5, seed=3).tokens == batch.tokens).all()
    assert (inputs.synthetic(MTP, 2, 5, seed=4).tokens != batch.tokens).any()
