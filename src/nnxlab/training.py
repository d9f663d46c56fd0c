"""Losses and gradients of both implementations, with the MTP term put in from outside."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util

from nnxlab.model import inputs, linen_model, loss, sown
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import Batch
from nnxlab.model.nnx_model import DeepSeek
from nnxlab.model.scan_axis import dotted

MTP_COLLECTIONS = ("mtp_losses", "mtp_acceptance")
SOWN_TYPES = (nnx.Intermediate, sown.mtp_losses, sown.mtp_acceptance)


class Result(NamedTuple):
    """What one forward and backward gives; losses are float32 scalars in nats."""

    loss: jax.Array
    lm_loss: jax.Array
    mtp_loss: jax.Array
    logits: jax.Array
    gradients: dict[str, jax.Array]  # by dotted path


def one_shot() -> dict[str, int]:
    """Compiler options for a program that runs once: on CPU, half the compile time."""
    return {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}


MtpTerm = Callable[[DeepSeek], jax.Array]


def mtp_term(model: DeepSeek) -> jax.Array:
    """The scaled MTP loss of the forward that ``model`` has just run; pops what it sowed.

    Raises:
      MissingCollectionError: The config has MTP layers and their losses were not sown.
    """
    collected = sown.collect(model, *SOWN_TYPES)
    if not model.config.mtp_num_layers:
        return jnp.zeros(())
    losses, weights = (
        sown.required(collected, "mtp_losses", "mtp_block", name) for name in ("losses", "weights")
    )
    return loss.mtp_loss(losses, weights, model.config.mtp_loss_scaling_factor)


def nnx_loss_and_gradients(
    model: DeepSeek, batch: Batch, *, term: MtpTerm = mtp_term
) -> Result:
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

    (value, parts), gradients = jax.jit(jax.value_and_grad(total, has_aux=True), compiler_options=one_shot())(params, batch)
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

    run = jax.jit(jax.value_and_grad(total, has_aux=True), compiler_options=one_shot())
    (value, parts), gradients = run(variables["params"], batch)
    flat = {dotted(path): g for path, g in traverse_util.flatten_dict(gradients).items()}
    return Result(value, *parts, flat)


def norm(arrays) -> jax.Array:
    """Euclidean norm over all elements of ``arrays``, a scalar."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(a)) for a in arrays))


def _sum(logits: jax.Array, batch: Batch, term: jax.Array):
    lm = loss.lm_loss(logits, batch.targets, loss.loss_mask(batch.target_mask))
    return lm + term, (lm, term, logits)
