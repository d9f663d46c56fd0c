import jax
import jax.numpy as jnp
import pytest
import qwix
from flax import nnx

from nnxlab import audit, quantization

X = jnp.ones((2, 4))


class Counter(nnx.Variable):
    pass


class Busy(nnx.Module):
    """Everything that a forward can change besides its parameters."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = Counter(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        x = self.dropout(self.norm(self.linear(x + 1)))
        self.sow(nnx.Intermediate, "seen", x)
        return x


@pytest.fixture
def busy():
    return Busy(nnx.Rngs(0))


def _provider(**changes):
    rule = {"module_path": "linear", "weight_qtype": jnp.int8, "act_qtype": jnp.int8}
    return quantization.Provider([qwix.QtRule(**rule | changes)])


def test_qwix_leaves_behind_what_the_forward_changed_and_each_is_named(busy):
    # F10
    lines = "\n".join(audit.quantized.leftovers(busy, qwix.quantize_model(busy, _provider(), X)))
    for path in ("calls (Counter): changed", "seen (Intermediate): added", "norm.mean (BatchStat)"):
        assert path in lines
    assert "count" in lines and "RngCount" in lines
    assert "linear" not in lines


def test_quantize_clean_leaves_nothing(busy):
    provider = _provider()
    clean = quantization.quantize_clean(busy, provider, X)
    assert audit.quantized.leftovers(busy, clean) == []
    assert provider.quantized == {("linear", "dot_general")}


def test_the_original_is_untouched(busy):
    before = jax.tree.map(jnp.copy, nnx.state(busy))
    quantization.quantize_clean(busy, _provider(), X)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), before, nnx.state(busy))
    assert all(jax.tree.leaves(same))


def test_the_clean_model_is_quantized_and_near():
    model = nnx.Sequential(nnx.Linear(16, 16, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (4, 16))
    clean = quantization.quantize_clean(model, _provider(module_path=".*"), x)
    exact, rough = model(x), clean(x)
    difference = float(jnp.abs(exact - rough).max())
    assert 0 < difference < 0.1 * float(jnp.abs(exact).max())


@pytest.mark.parametrize("changes", [{"module_path": "lineal"}, {"op_names": ("einsum",)}])
def test_a_rule_that_matches_nothing_is_named(busy, changes):
    # F11
    with pytest.raises(quantization.UnusedRuleError) as caught:
        quantization.quantize_clean(busy, _provider(**changes), X)
    assert next(iter(changes.values()))[0] in str(caught.value)


class Guarded(nnx.Module):
    def __init__(self, rngs):
        self.main, self.extra = (nnx.Linear(4, 4, rngs=rngs) for _ in range(2))

    def __call__(self, x, targets=None):
        x = self.main(x)
        return x if targets is None else self.extra(x)


def test_a_guarded_branch_is_listed_as_unreached():
    # F9: no crash, and the branch that the dummy inputs skipped stays in full precision.
    model = Guarded(nnx.Rngs(0))
    provider = _provider(module_path=".*")
    quantization.quantize_clean(model, provider, X)
    assert audit.quantized.unreached(model, provider.quantized) == ["extra"]
    provider = _provider(module_path=".*")
    quantization.quantize_clean(model, provider, X, X)
    assert audit.quantized.unreached(model, provider.quantized) == []


def test_the_rules_of_both_providers_reach_every_matrix_of_the_layers(sizes):
    from nnxlab.model import nnx_model

    model = nnx_model.abstract(sizes)
    for make in quantization.PROVIDERS.values():
        provider = make()
        quantization.quantize(model, provider)
        left = audit.quantized.unreached(model, provider.quantized)
        assert left == ["decoder/logits_dense", "token_embedder"]


def test_a_forward_that_raises_leaves_the_model_alone(busy):
    with pytest.raises(TypeError):
        quantization.quantize_clean(busy, _provider(), None)
    assert int(busy.calls[...]) == 0
