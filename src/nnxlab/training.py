"""Losses and gradients of both implementations, with the MTP term put in from outside."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from nnxlab import devices
from nnxlab.model import inputs, linen_model, loss, sown
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import Batch
from nnxlab.model.nnx_model import DeepSeek
from nnxlab.model.scan_axis import dotted

MTP_COLLECTIONS = ("mtp_losses", "mtp_acceptance")
SOWN_TYPES = (nnx.Intermediate, sown.mtp_losses, sown.mtp_acceptance)


class Result(NamedTuple):
    """What one forward and backward gives, on the host; losses are float32 scalars in nats."""

    loss: np.ndarray
    lm_loss: np.ndarray
    mtp_loss: np.ndarray
    logits: np.ndarray  # [B, S, V]
    gradients: dict[str, np.ndarray]  # by dotted path


class MtpTerms(NamedTuple):
    """How a training step makes the MTP loss: what it collects, and what it makes of that."""

    collect: Callable[[DeepSeek], dict] | None  # pops what the forward sowed, by collection
    loss: Callable[[dict, DeepSeekConfig], jax.Array]  # the scaled MTP loss

    def __call__(self, model: DeepSeek) -> jax.Array:
        """The MTP loss of the forward that ``model`` has just run."""
        return self.loss(self.collect(model), model.config)


def collect_all(model: DeepSeek) -> dict[str, nnx.State]:
    """Every sown variable of ``model``, popped, under its own type's name."""
    return sown.collect(model, *SOWN_TYPES)


def required_loss(collected: dict[str, nnx.State], config: DeepSeekConfig) -> jax.Array:
    """The scaled MTP loss, a scalar; 0 only where the config has no MTP layers.

    Raises:
      MissingCollectionError: The config has MTP layers and their losses were not sown.
    """
    if not config.mtp_num_layers:
        return jnp.zeros(())
    losses, weights = (
        sown.required(collected, "mtp_losses", "mtp_block", name) for name in ("losses", "weights")
    )
    return loss.mtp_loss(losses, weights, config.mtp_loss_scaling_factor)


mtp_term = MtpTerms(collect_all, required_loss)


def nnx_loss_and_gradients(model: DeepSeek, batch: Batch, *, term: MtpTerms = mtp_term) -> Result:
    """Losses and gradients of an NNX model; ``model`` itself is left as it was.

    Args:
      model: The model, its weights used as they are.
      batch: Everything that its config needs.
      term: Collects the sown variables and returns the MTP loss; the cases put faults in here.

    Raises:
      MissingInputError: ``batch`` lacks an input.
      Whatever ``term`` raises.
    """
    inputs.check(model.config, batch)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def total(params, batch):
        # copy=True: merge shares Variables with the closed-over state since flax 0.11.2, and the
        # sow below would then write a tracer into it.
        traced = nnx.merge(graphdef, params, rest, copy=True)
        logits = traced(*batch)
        return _sum(logits, batch, term(traced))

    (value, parts), gradients = _run(total, params, batch)
    flat = {dotted(path): v.get_value() for path, v in nnx.to_flat_state(gradients)}
    return Result(value, *parts, flat)


def linen_loss_and_gradients(config: DeepSeekConfig, variables: dict, batch: Batch) -> Result:
    """Losses and gradients of the Linen model with ``variables`` (``{"params": ...}``).

    Raises:
      MissingInputError: ``batch`` lacks an input.
    """
    inputs.check(config, batch)
    model = linen_model.DeepSeek(config)

    def total(params, batch):
        logits, left = model.apply({"params": params}, *batch, mutable=MTP_COLLECTIONS)
        if not config.mtp_num_layers:
            return _sum(logits, batch, jnp.zeros(()))
        block = left["mtp_losses"]["mtp_block"]
        term = loss.mtp_loss(block["losses"], block["weights"], config.mtp_loss_scaling_factor)
        return _sum(logits, batch, term)

    (value, parts), gradients = _run(total, variables["params"], batch)
    flat = {dotted(path): g for path, g in traverse_util.flatten_dict(gradients).items()}
    return Result(value, *parts, flat)


def norm(arrays) -> float:
    """Euclidean norm over all elements of ``arrays``."""
    return float(np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in arrays)))


def _run(total, params, batch: Batch):
    gradient = jax.value_and_grad(total, has_aux=True)
    return jax.device_get(jax.jit(gradient, compiler_options=devices.one_shot())(params, batch))


def _sum(logits: jax.Array, batch: Batch, term: jax.Array):
    lm = loss.lm_loss(logits, batch.targets, loss.loss_mask(batch.target_mask))
    return lm + term, (lm, term, logits)
