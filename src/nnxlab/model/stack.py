"""Stacks of equal layers: created by ``jax.vmap``, applied by ``jax.lax.scan``.

Manual split, scan and merge, as MaxText does it, and not ``nnx.scan``: it leaves the choice of
the scan axis per variable, and it is where bug 3 lives. Parameters enter the scan and never leave
it, so no second copy of them is stacked up (MaxText 655c636dd).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from nnxlab import compat
from nnxlab.model import scan_axis
from nnxlab.model.config import REMAT_POLICIES
from nnxlab.model.scan_axis import POSITION_KEY, RoundTrip, ScanAxis


def create(
    build: Callable[[nnx.Rngs], nnx.Module], length: int, name: str, axis: int, rngs: nnx.Rngs
) -> nnx.Module:
    """A module like ``build``'s whose parameters carry a layer axis of size ``length``.

    Args:
      build: Makes one layer from its random streams.
      length: Number of layers.
      name: Logical name of the layer axis, recorded under ``nnx.PARTITION_NAME``.
      axis: Position of the layer axis, cut to each weight's rank; may be negative.
      rngs: The random stream ``params`` is used.
    """
    keys = jax.random.split(rngs.params(), length)
    stacked = jax.vmap(lambda key: nnx.state(build(nnx.Rngs(params=key))))(keys)
    graphdef = nnx.graphdef(compat.eval_shape(lambda: build(nnx.Rngs(params=0))))
    return nnx.merge(graphdef, _map(lambda v: _stacked(v, name, axis), stacked))


def apply(
    stack: nnx.Module,
    x: jax.Array,
    call: Callable[[nnx.Module, jax.Array], jax.Array],
    *,
    trip: RoundTrip,
    remat_policy: str,
    where: str = "",
) -> jax.Array:
    """Runs ``call(layer, x)`` through the layers of ``stack`` in order: [B, S, D] -> [B, S, D].

    What the layers leave behind (sown values, counters) is written back to ``stack``, stacked at
    axis 0; parameters keep their values and get the metadata that ``trip`` gives back.

    Raises:
      ScanAxisError: The metadata of a parameter is inconsistent and ``trip`` is strict.
    """
    graphdef, params, rest = nnx.split(stack, nnx.Param, ...)
    layer_params = scan_axis.to_layer(params, trip, where)

    def body(x, slices):
        layer = nnx.merge(graphdef, *slices)
        x = call(layer, x)
        return x, nnx.state(layer, nnx.Not(nnx.Param))

    if remat_policy != "none":
        body = jax.checkpoint(body, policy=REMAT_POLICIES[remat_policy])
    x, left = jax.lax.scan(body, x, (_map(_layers_first, layer_params), rest))
    nnx.update(stack, left)
    _write_back(params, scan_axis.to_stack(layer_params, trip, where))
    return x


def _map(function: Callable, state: nnx.State) -> nnx.State:
    return jax.tree.map(function, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def _stacked(variable: nnx.Variable, name: str, axis: int) -> nnx.Variable:
    names = compat.logical_axes(variable)
    # What declares no names (counters, keys) stays stacked at 0, as the scan gives it back.
    position = 0 if names is None else scan_axis.position_for(axis, len(names))
    value = jnp.moveaxis(variable.get_value(), 0, position)
    variable = variable.replace(value, **{nnx.PARTITION_NAME: name, POSITION_KEY: position})
    if names is None:
        return variable
    stacked = scan_axis.add(names, ScanAxis(name, position), len(names))
    return compat.with_logical_axes(variable, stacked)


def _layers_first(variable: nnx.Variable) -> nnx.Variable:
    position = variable.get_metadata()[POSITION_KEY]
    return variable.replace(jnp.moveaxis(variable.get_value(), position, 0))


def _write_back(params: nnx.State, after: nnx.State) -> None:
    after = dict(nnx.to_flat_state(after))
    for path, variable in nnx.to_flat_state(params):
        names = compat.logical_axes(after[path])
        if names != compat.logical_axes(variable):
            compat.set_logical_axes(variable, names)
