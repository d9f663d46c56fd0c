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
