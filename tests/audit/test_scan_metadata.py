import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nnxlab import audit, compat
from nnxlab.cases import scan_axis
from nnxlab.model import config, inputs, nnx_model
from nnxlab.sharding import variables

SIZES = config.DEEPSEEK3_SMALL


def _forward(model):
    return model(*inputs.dummy(SIZES))


def test_our_model_passes_both_checks():
    model = nnx_model.abstract(SIZES)
    audit.scan_metadata.check(model)
    audit.scan_metadata.check_forward(model, _forward)


def test_a_forward_that_renames_is_named_with_before_and_after():
    model = nnx_model.abstract(SIZES, trip=scan_axis.BROKEN)
    with pytest.raises(audit.scan_metadata.MetadataError) as caught:
        audit.scan_metadata.check_forward(model, _forward)
    assert "29 of 32 parameters" in str(caught.value)
    assert "('embed', 'dense_layers', 'mlp') -> ('dense_layers', 'layers', 'mlp')" in str(
        caught.value
    )
    audit.scan_metadata.check(model)  # the model that was given is not touched


def test_a_stack_without_transform_metadata_is_named():
    # F12, flax #5112: vmap stacks the values and leaves the names one short.
    @nnx.vmap
    def create(key):
        init = nnx.with_metadata(nnx.initializers.ones, out_sharding=("a", "b"))
        with nnx.use_eager_sharding(False):
            return nnx.Linear(4, 4, kernel_init=init, use_bias=False, rngs=nnx.Rngs(key))

    layers = create(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(audit.scan_metadata.MetadataError, match="2 names for rank 3"):
        audit.scan_metadata.check(layers)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("dense_layers", "layers", "mlp"), "'dense_layers' at 0, recorded at 1"),
        (("embed", "layers", "mlp"), "'dense_layers' stands 0 times"),
        (("dense_layers", "dense_layers", "mlp"), "'dense_layers' stands 2 times"),
        (("embed", "dense_layers"), "2 names for rank 3"),
        (("a", "b", "dense_layers", "c"), "4 names for rank 3"),
    ],
)
def test_each_inconsistency_is_named(names, fault):
    model = nnx_model.abstract(SIZES)
    weights = dict(variables(model))
    compat.set_logical_axes(weights["decoder.dense_layers.mlp.wi_0.kernel"], names)
    with pytest.raises(audit.scan_metadata.MetadataError) as caught:
        audit.scan_metadata.check(model)
    assert "decoder.dense_layers.mlp.wi_0.kernel" in str(caught.value) and fault in str(
        caught.value
    )


def test_every_inconsistent_variable_is_listed():
    model = nnx_model.abstract(SIZES)
    for _, variable in list(variables(model))[:3]:
        compat.set_logical_axes(variable, ("x",) * 9)
    with pytest.raises(audit.scan_metadata.MetadataError) as caught:
        audit.scan_metadata.check(model)
    assert str(caught.value).count("9 names for rank") == 3


def test_a_model_without_names_has_nothing_to_contradict():
    audit.scan_metadata.check(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    audit.scan_metadata.check_forward(linear, lambda model: model(jnp.ones((1, 2))))
