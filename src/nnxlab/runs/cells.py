"""The four cells of the PR's matrix, each with the three bugs put in or not."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import nnx, traverse_util

from nnxlab import compat, sharding
from nnxlab.cases import mtp_loss, qwix_targets, scan_axis
from nnxlab.compat import Names
from nnxlab.model import inputs, linen_model, loss, nnx_model
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import Batch
from nnxlab.model.nnx_model import DeepSeek
from nnxlab.model.scan_axis import dotted
from nnxlab.quantization import PROVIDERS
from nnxlab.training import MTP_COLLECTIONS, MtpTerms, collect_all, mtp_term

CELLS = ("nnx_mtp", "nnx_mtp_qwix", "linen_mtp", "linen_mtp_qwix")
BUGS = (mtp_loss.NAME, qwix_targets.NAME, scan_axis.NAME)

Params = dict[str, jax.Array]  # by dotted path, the same paths in NNX and Linen


@dataclasses.dataclass(frozen=True)
class Cell:
    """One way of training the model.

    Attributes:
      config: Sizes, with at least one MTP layer.
      names: The logical axes of every weight: the snapshot that the run is sharded by, taken of
        what the constructor returns.
      names_after: The same as the model carries them after a forward; bug 3 makes the difference.
      shapes: Every weight's shape.
      initial: From a seed to the weights on the host, float32; NNX and Linen get the same.
      forward: From weights and batch to the head's scores and what was collected, by collection.
      terms: How the MTP loss is made of that.
    """

    config: DeepSeekConfig
    names: dict[str, Names]
    names_after: dict[str, Names]
    shapes: dict[str, tuple[int, ...]]
    initial: Callable[[int], dict[str, np.ndarray]]
    forward: Callable[[Params, Batch], tuple[loss.Scores, dict]]
    terms: MtpTerms


def build(name: str, config: DeepSeekConfig, broken=(), quantization: str = "fp8_full") -> Cell:
    """The cell called ``name``; no array is allocated.

    Args:
      name: One of ``CELLS``.
      config: Sizes; one MTP layer is added if there is none.
      broken: The bugs to put in, of ``BUGS``. Linen is immune to all three.
      quantization: A key of ``quantization.PROVIDERS``, for the cells that quantize.

    Raises:
      ValueError: An unknown cell, bug or quantization, all of them named.
      TypeError: That of bug 2, where it is put into the NNX cell that quantizes.
    """
    faults = [f"unknown cell {name!r}; known: {', '.join(CELLS)}"] if name not in CELLS else []
    faults += [f"unknown bug {b!r}; known: {', '.join(BUGS)}" for b in broken if b not in BUGS]
    if quantization not in PROVIDERS:
        faults.append(f"unknown quantization {quantization!r}; known: {', '.join(PROVIDERS)}")
    if faults:
        raise ValueError("; ".join(faults))
    config = config.replace(mtp_num_layers=max(1, config.mtp_num_layers))
    make = PROVIDERS[quantization] if name.endswith("qwix") else None
    if name.startswith("linen"):
        return _linen(config, make)
    return _nnx(config, make, frozenset(broken))


def _nnx(config: DeepSeekConfig, make, broken: frozenset[str]) -> Cell:
    trip = scan_axis.BROKEN if scan_axis.NAME in broken else scan_axis.FIXED
    terms = mtp_loss.broken if mtp_loss.NAME in broken else mtp_term
    quantize = qwix_targets.broken if qwix_targets.NAME in broken else qwix_targets.fixed

    def construct(seed=0) -> DeepSeek:
        # Quantized while it is built, as MaxText does it: bug 3 then reaches the snapshot.
        model = DeepSeek(config, rngs=nnx.Rngs(params=seed), trip=trip)
        return quantize(model, make()) if make else model

    def stepped() -> DeepSeek:
        model = construct()
        model(*inputs.dummy(config))
        collect_all(model)
        return model

    graphdef, params, rest = nnx.split(compat.eval_shape(construct), nnx.Param, ...)
    assert not nnx.to_flat_state(rest), "the specimen has no state but its weights"
    paths = {dotted(path): path for path, _ in nnx.to_flat_state(params)}
    variables = dict(nnx.to_flat_state(params))

    def forward(weights: Params, batch: Batch):
        flat = {path: variables[path].replace(weights[key]) for key, path in paths.items()}
        model = nnx.merge(graphdef, nnx.from_flat_state(flat), rest, copy=True)
        scores = model(*batch, scores=True)
        return scores, terms.collect(model)

    return Cell(
        config,
        {key: compat.logical_axes(variables[path]) for key, path in paths.items()},
        _names(compat.eval_shape(stepped)),
        {key: tuple(variables[path].shape) for key, path in paths.items()},
        lambda seed: _initial(config, seed),
        forward,
        terms,
    )


def _linen(config: DeepSeekConfig, make) -> Cell:
    if linen_model.scan_axis(config) != config.param_scan_axis:
        raise ValueError(
            f"param_scan_axis={config.param_scan_axis}: Linen stacks at 0 or 1 only, and a run "
            "from the same weights needs the same layout"
        )
    plain = compat.eval_shape(lambda: DeepSeek(config, rngs=nnx.Rngs(params=0)))
    variables = {dotted(p): v for p, v in nnx.to_flat_state(nnx.state(plain, nnx.Param))}
    model = linen_model.DeepSeek(config)
    model = qwix.quantize_model(model, make()) if make else model

    def forward(weights: Params, batch: Batch):
        params = traverse_util.unflatten_dict(weights, sep=".")
        return model.apply({"params": params}, *batch, scores=True, mutable=MTP_COLLECTIONS)

    def linen_loss(collected: dict, config: DeepSeekConfig) -> jax.Array:
        block = collected["mtp_losses"]["mtp_block"]
        return loss.mtp_loss(block["losses"], block["weights"], config.mtp_loss_scaling_factor)

    names = {key: compat.logical_axes(variable) for key, variable in variables.items()}
    return Cell(
        config,
        names,
        names,
        {key: tuple(variable.shape) for key, variable in variables.items()},
        lambda seed: _initial(config, seed),
        forward,
        MtpTerms(collect=None, loss=linen_loss),
    )


def _names(model: DeepSeek) -> dict[str, Names]:
    return {path: compat.logical_axes(variable) for path, variable in sharding.variables(model)}


@functools.lru_cache(maxsize=1)  # every cell of a matrix starts from the same weights
def _initial(config: DeepSeekConfig, seed: int) -> dict[str, np.ndarray]:
    model = nnx_model.create(config, seed=seed)
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {dotted(path): np.asarray(variable.get_value()) for path, variable in flat}


def sown_anywhere(collected: dict, name: str) -> jax.Array:
    """The value sown as ``mtp_block.<name>`` at depth 1, in whichever collection it ended up.

    The acceptance rate is an instrument of the lab and not part of the model under test: it must
    be right in a run whose loss is broken too.
    """
    for collection in collected.values():
        block = collection.get("mtp_block", {})
        if name in block:
            value = block[name]
            return (value.get_value() if isinstance(value, nnx.Variable) else value)[0]
    raise LookupError(f"mtp_block.{name} is in none of the collections {', '.join(collected)}")


def totals(config: DeepSeekConfig, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How many positions count: for the next token, and for MTP pooled over its depths."""
    counted, rolled = loss.loss_mask(mask), loss.loss_mask(mask)
    pooled = jnp.zeros(())
    for _ in range(config.mtp_num_layers):
        rolled = loss.roll_left(rolled)
        pooled += rolled.sum()
    return counted.sum(), pooled
