import jax
import numpy as np
import pytest
from flax import nnx

from nnxlab import sharding
from nnxlab.model import config, weights
from nnxlab.model.nnx_layers import Layer


@pytest.fixture
def all_draws(monkeypatch):
    """The ``Draws`` made during a test."""
    made = []
    monkeypatch.setattr(weights.Draws, "__init__", _remembering(weights.Draws.__init__, made))
    return made


def _remembering(init, made):
    def remember(self, *args):
        init(self, *args)
        made.append(self)

    return remember


@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize("moe", [False, True])
def test_a_layer_uses_exactly_the_numbers_it_announces(all_draws, moe, shared):
    # Too few announced raises; too many would waste memory and nobody would see it.
    sizes = config.DEEPSEEK3_SMALL.replace(num_shared_experts=shared)
    nnx.eval_shape(lambda: Layer(sizes, moe=moe, rngs=nnx.Rngs(params=0)))
    (draws,) = all_draws
    assert draws._used == draws._numbers.size > 0


def test_no_two_weights_of_a_layer_share_numbers():
    layer = Layer(config.DEEPSEEK3_SMALL, moe=True, rngs=nnx.Rngs(params=0))
    values = [np.asarray(v[...]).ravel() for _, v in sharding.variables(layer)]
    drawn = np.concatenate([np.sort(v) / np.std(v) for v in values if np.std(v)])
    kernels = [v for v in values if np.std(v)]
    firsts = {float(v[0] / np.std(v)) for v in kernels}
    assert len(firsts) == len(kernels) > 8 and drawn.size == sum(map(np.size, kernels))


def test_a_layer_without_shared_experts_has_no_weights_for_them():
    sizes = config.DEEPSEEK3_SMALL.replace(num_shared_experts=0)
    layer = nnx.eval_shape(lambda: Layer(sizes, moe=True, rngs=nnx.Rngs(params=0)))
    assert layer.DeepSeekMoeBlock_0.shared_experts is None
    x = jax.ShapeDtypeStruct((1, 8, sizes.emb_dim), "float32")
    ids = jax.ShapeDtypeStruct((1, 8), "int32")
    assert nnx.eval_shape(lambda m, *a: m(*a), layer, x, ids, ids).shape == x.shape
