"""Weights from one implementation to the other, complete or not at all."""

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from nnxlab.model import nnx_model
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.linen_model import scan_axis
from nnxlab.model.scan_axis import POSITION_KEY, dotted, position_for


class WeightError(ValueError):
    """Weights do not fit a model; the message lists every one that does not."""


def to_linen(model: nnx.Module) -> dict:
    """Linen's ``{"params": ...}`` with the weights of an NNX ``DeepSeek``."""
    axis = scan_axis(model.config)
    flat = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        value, position = np.asarray(variable.get_value()), _position(variable)
        if position is not None:
            value = np.moveaxis(value, position, position_for(axis, value.ndim - 1))
        flat[path] = value
    return {"params": traverse_util.unflatten_dict(flat)}


def from_linen(variables: dict, model: nnx.Module) -> None:
    """Puts the weights of Linen's ``{"params": ...}`` into an NNX ``DeepSeek``, in place.

    Raises:
      WeightError: A weight is missing, left over, of another shape, or not finite. The model is
        unchanged then.
    """
    flat = traverse_util.flatten_dict(nn.unbox(variables["params"]))
    load(model, {dotted(path): value for path, value in flat.items()}, scan_axis(model.config))


def load(model: nnx.Module, values: dict[str, np.ndarray], axis: int) -> None:
    """Puts ``values`` (by dotted path) into ``model``, in place.

    Args:
      model: An NNX model, its parameters of any logical axes.
      values: Every parameter's value, float32.
      axis: Where stacked values carry their layer axis; moved to where ``model`` has it.

    Raises:
      WeightError: As ``from_linen``.
    """
    params = {dotted(path): v for path, v in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    faults = [f"{path}: missing" for path in sorted(params.keys() - values.keys())]
    faults += [f"{path}: left over" for path in sorted(values.keys() - params.keys())]
    fitting = {}
    for path in sorted(params.keys() & values.keys()):
        variable, value = params[path], np.asarray(values[path])
        position = _position(variable)
        if position is not None and value.ndim == len(variable.shape):
            value = np.moveaxis(value, position_for(axis, value.ndim - 1), position)
        if value.shape != tuple(variable.shape):
            faults.append(f"{path}: shape {value.shape}, needs {tuple(variable.shape)}")
        elif not np.isfinite(value).all():
            faults.append(f"{path}: {(~np.isfinite(value)).sum()} values are not finite")
        fitting[path] = value
    if faults:
        raise WeightError("weights do not fit the model:\n  " + "\n  ".join(faults))
    for path, variable in params.items():
        variable[...] = jnp.asarray(fitting[path], variable.dtype)


def shapes(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of an NNX model, abstract or not, by dotted path."""
    params = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {dotted(path): tuple(variable.shape) for path, variable in params}


def count_parameters(config: DeepSeekConfig) -> int:
    """Number of weights of the NNX model, computed abstractly."""
    return sum(math.prod(shape) for shape in shapes(nnx_model.abstract(config)).values())


def _position(variable: nnx.Variable) -> int | None:
    return variable.get_metadata().get(POSITION_KEY)
