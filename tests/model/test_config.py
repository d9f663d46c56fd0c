import dataclasses

import pytest

from nnxlab.model import config


def test_every_contradiction_is_in_one_message():
    with pytest.raises(ValueError) as caught:
        config.DEEPSEEK3_SMALL.replace(
            emb_dim=0,
            first_num_dense_layers=9,
            mtp_num_layers=-1,
            num_experts_per_tok=99,
            qk_rope_head_dim=7,
            remat_policy="some",
            dtype="float16",
        )
    for name in (
        "emb_dim=0",
        "first_num_dense_layers=9",
        "mtp_num_layers=-1",
        "num_experts_per_tok=99",
        "qk_rope_head_dim=7",
        "remat_policy='some'",
        "dtype='float16'",
    ):
        assert name in str(caught.value)


WHOLE = [f.name for f in dataclasses.fields(config.DeepSeekConfig) if f.type is int]


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "param_scan_axis"])
def test_no_size_is_negative(name):
    with pytest.raises(ValueError, match=f"{name}=-1"):
        config.DEEPSEEK3_SMALL.replace(**{name: -1})


def test_the_bounds_themselves_are_allowed():
    small = config.DEEPSEEK3_SMALL
    assert small.replace(first_num_dense_layers=5).num_moe_layers == 0
    assert small.replace(first_num_dense_layers=0).num_moe_layers == 5
    assert small.replace(num_experts_per_tok=8).num_experts == 8
    assert small.replace(num_shared_experts=0, param_scan_axis=-1).mtp_num_layers == 0


def test_a_config_cannot_be_changed_or_given_an_unknown_size():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.DEEPSEEK3_SMALL.emb_dim = 3
    with pytest.raises(TypeError, match="emb_dims"):
        config.DEEPSEEK3_SMALL.replace(emb_dims=3)


def test_tiny_is_maxtexts_deepseek3_tiny():
    tiny = config.DEEPSEEK3_TINY
    assert (tiny.num_decoder_layers, tiny.first_num_dense_layers) == (61, 3)
    assert tiny.num_moe_layers == 58
    assert (tiny.vocab_size, tiny.emb_dim, tiny.num_heads) == (129_280, 64, 4)
    assert (tiny.num_experts, tiny.num_experts_per_tok) == (16, 8)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown config 'big'; known: small, tiny"):
        config.config_named("big")


def test_changes_are_validated():
    assert config.config_named("tiny", mtp_num_layers=2).mtp_num_layers == 2
    with pytest.raises(ValueError, match="vocab_size=0"):
        config.config_named("tiny", vocab_size=0)
