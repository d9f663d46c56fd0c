import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from nnxlab.model import config, ops

SIZES = config.DEEPSEEK3_SMALL
# Of a float32 sum of terms near 1 that cancel; the order of the sum is XLA's choice.
ROUNDING = 1e-6


def _random(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_rms_norm_of_bfloat16_is_rounded_once_and_at_the_end():
    x = _random(100, 50).astype(jnp.bfloat16)
    found = ops.rms_norm(x, jnp.ones(50), 0.0, jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    exact /= np.sqrt((exact**2).mean(-1, keepdims=True))
    assert found.dtype == jnp.bfloat16
    # Squared and scaled in bfloat16, half of the values are off by a last place.
    assert float((found == jnp.asarray(exact, jnp.bfloat16)).mean()) > 0.99


def test_rms_norm_is_the_formula():
    x, scale = np.asarray(_random(2, 3, 8)), np.asarray(_random(8, seed=1))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
    found = ops.rms_norm(jnp.asarray(x), jnp.asarray(scale), 1e-6, jnp.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("axes", [1, 2])
def test_dense_contracts_the_last_axes_with_the_first(axes):
    x, kernel = _random(2, 3, 4, 5), _random(*(4, 5)[2 - axes :], 6, seed=1)
    expected = np.tensordot(x, kernel, axes)
    found = ops.dense(x, kernel, jnp.float32, axes)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=ROUNDING)


# With a base of 100 the ramp ends past half of the dimensions.
@pytest.mark.parametrize(
    "sizes",
    [SIZES, config.DEEPSEEK3_671B, SIZES.replace(rope_theta=100.0)],
    ids=["small", "671b", "base of 100"],
)
def test_yarn_frequencies_are_those_published_with_deepseek_v3(sizes):
    # Written anew from the paper (arXiv 2309.00071, section 3.2), one frequency at a time.
    dim, base, factor, context = sizes.qk_rope_head_dim, sizes.rope_theta, 40.0, 4096
    found = ops.yarn_frequencies(sizes)
    assert found.shape == (dim // 2,)

    def boundary(rotations):
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(boundary(32)), 0), min(math.ceil(boundary(1)), dim - 1)
    for index in range(dim // 2):
        plain = base ** (-2 * index / dim)
        ramp = min(max((index - low) / (high - low), 0), 1)
        assert found[index] == pytest.approx(plain / factor * ramp + plain * (1 - ramp), rel=1e-5)


def test_rotating_keeps_norms_and_scores_see_relative_positions_only():
    x, y = _random(1, 4, 1, 8), _random(1, 4, 1, 8, seed=1)
    near, far = jnp.arange(4)[None], jnp.arange(4)[None] + 100
    a, b = (ops.rotate(x, p, SIZES) for p in (near, far))
    np.testing.assert_allclose(jnp.linalg.norm(a, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)
    scores = [
        jnp.einsum("bshr,bthr->bst", ops.rotate(x, p, SIZES), ops.rotate(y, p, SIZES))
        for p in (near, far)
    ]
    np.testing.assert_allclose(*scores, atol=1e-4)
    assert float(jnp.abs(a - b).max()) > 0.01


def test_softmax_scale_has_yarns_temperature_where_the_context_is_stretched():
    plain = SIZES.replace(max_position_embeddings=4096)
    temperature = 0.1 * math.log(40.0) + 1
    assert ops.softmax_scale(plain) == pytest.approx(24**-0.5)
    assert ops.softmax_scale(SIZES) == pytest.approx(24**-0.5 * temperature**2)


def test_attention_is_causal_and_stays_in_its_document():
    mask = ops.attention_mask(jnp.array([[1, 1, 2, 2, 0]]))[0]
    expected = np.zeros((5, 5), bool)
    expected[:2, :2] = expected[2:4, 2:4] = np.tril(np.ones((2, 2), bool))
    expected[4, 4] = True
    np.testing.assert_array_equal(mask, expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_token_sees_itself_and_what_is_earlier_in_its_document(ids):
    mask = np.asarray(ops.attention_mask(jnp.array([ids, ids[::-1]])))
    for row, segments in zip(mask, (ids, ids[::-1]), strict=True):
        for s, t in np.ndindex(row.shape):
            assert row[s, t] == (t <= s and segments[s] == segments[t])


def test_attention_is_the_softmax_over_the_tokens_that_are_seen():
    q, k, v = (_random(1, 3, 1, 2, seed=s) for s in range(3))
    mask = ops.attention_mask(jnp.array([[1, 2, 2]]))
    out = np.asarray(ops.attend(q, k, v, mask))[0, :, 0]
    q, k, v = (np.asarray(x)[0, :, 0] for x in (q, k, v))
    scores = np.exp(k[1:] @ q[2])
    np.testing.assert_allclose(out[:2], v[:2], rtol=1e-5)
    np.testing.assert_allclose(out[2], scores @ v[1:] / scores.sum(), rtol=1e-5, atol=ROUNDING)


def test_a_masked_token_has_no_influence():
    q, k, v = (_random(1, 4, 2, 3, seed=s) for s in range(3))
    mask = ops.attention_mask(jnp.array([[1, 1, 2, 2]]))
    out = ops.attend(q, k, v, mask)
    changed = ops.attend(q, k.at[:, 0].add(9.0), v.at[:, 0].add(9.0), mask)
    np.testing.assert_array_equal(out[:, 2:], changed[:, 2:])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_router_chooses_by_biased_scores_and_weighs_by_unbiased_ones(seed):
    random = np.random.default_rng(seed)
    scores = jnp.asarray(random.uniform(0.1, 1, (2, 3, SIZES.num_experts)), jnp.float32)
    bias = jnp.asarray(random.normal(size=SIZES.num_experts), jnp.float32)
    weights = np.asarray(ops.route(scores, bias, SIZES))
    top = np.argsort(-np.asarray(scores + bias), axis=-1)[..., : SIZES.num_experts_per_tok]
    chosen = np.zeros_like(weights, bool)
    np.put_along_axis(chosen, top, True, axis=-1)
    np.testing.assert_array_equal(weights > 0, chosen)
    np.testing.assert_allclose(weights.sum(-1), SIZES.routed_scaling_factor, rtol=1e-5)
    expected = np.where(chosen, scores, 0)
    expected = expected / expected.sum(-1, keepdims=True) * SIZES.routed_scaling_factor
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_equal_scores_still_choose_exactly_so_many_experts():
    scores = jnp.full((1, 2, SIZES.num_experts), 0.5)
    weights = ops.route(scores, jnp.zeros(SIZES.num_experts), SIZES)
    assert ((weights > 0).sum(-1) == SIZES.num_experts_per_tok).all()


def test_the_routing_bias_gets_no_gradient():
    def total(bias):
        return (ops.route(scores, bias, SIZES) * _random(1, 2, SIZES.num_experts, seed=1)).sum()

    scores = jax.nn.sigmoid(_random(1, 2, SIZES.num_experts))
    assert not jax.grad(total)(jnp.zeros(SIZES.num_experts)).any()


def test_the_rotary_part_of_the_key_is_shared_by_all_heads():
    sizes, positions = SIZES, jnp.arange(3)[None]
    kernel = _random(sizes.kv_lora_rank, sizes.num_heads, 16 + 16, seed=1)
    key, value = ops.mla_key_value(
        _random(1, 3, sizes.kv_lora_rank + sizes.qk_rope_head_dim),
        positions,
        sizes,
        lambda x: x,
        lambda x: x,
        lambda x: ops.dense(x, kernel, jnp.float32),
    )
    assert key.shape == (1, 3, 4, 24) and value.shape == (1, 3, 4, 16)
    rotary = key[..., 16:]
    np.testing.assert_array_equal(rotary, jnp.broadcast_to(rotary[:, :, :1], rotary.shape))
    assert (key[:, :, 0, :16] != key[:, :, 1, :16]).any()


def test_experts_are_the_weighted_sum_of_each_experts_swiglu():
    x, weights = _random(1, 2, 4), jnp.abs(_random(1, 2, 3, seed=1))
    wi_0, wi_1, wo = _random(3, 4, 5, seed=2), _random(3, 4, 5, seed=3), _random(3, 5, 4, seed=4)
    found = ops.experts(x, weights, wi_0, wi_1, wo, jnp.float32)
    expected = np.zeros((1, 2, 4))
    for token in range(2):
        for e in range(3):
            hidden = jax.nn.silu(x[0, token] @ wi_0[e]) * (x[0, token] @ wi_1[e])
            expected[0, token] += weights[0, token, e] * (hidden @ wo[e])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=ROUNDING)


def test_by_batch_splits_rows_on_the_mesh_that_is_set_and_is_free_without(mesh):
    x = jnp.ones((8, 4))
    assert ops.by_batch(x) is x
    with jax.set_mesh(mesh):
        split = jax.jit(ops.by_batch)(x)
    assert {shard.data.shape for shard in split.addressable_shards} == {(1, 4)}


def test_swiglu_gates_with_the_first_kernel_and_not_with_the_second():
    x = _random(1, 2, 4)
    first, second, out = _random(4, 5, seed=1), _random(4, 5, seed=2), _random(5, 4, seed=3)
    found = ops.swiglu(x, *(lambda h, k=k: h @ k for k in (first, second, out)))
    gate = np.asarray(x @ first)
    expected = (gate / (1 + np.exp(-gate)) * np.asarray(x @ second)) @ np.asarray(out)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
