"""Bug 1: the multi-token prediction loss is 0.0 at every step, without an error.

nnx filters match by isinstance. ``mtp_losses`` is a subclass of ``nnx.Intermediate``, so the
generic pop took its variables, the dedicated pop after it got nothing, and the loss helper fell
back to its default (MaxText 99ffcf64a, mended in a8427ccb7 of PR #4525).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nnxlab.cases.finding import Claim, Finding
from nnxlab.model import inputs, loss, nnx_model, port, sown
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import Batch
from nnxlab.training import (
    MtpTerms,
    Result,
    linen_loss_and_gradients,
    mtp_term,
    nnx_loss_and_gradients,
    norm,
)

NAME = "mtp-loss"
GENERIC_FIRST = (nnx.Intermediate, sown.mtp_losses, sown.mtp_acceptance)
SPECIFIC_FIRST = (sown.mtp_losses, sown.mtp_acceptance, nnx.Intermediate)


def pop_in_order(model: nnx.Module, types: tuple[type, ...]) -> dict[str, nnx.State]:
    """One ``nnx.pop`` a type, in the order given: the whole bug is in that order."""
    return {kind.__name__: nnx.pop(model, kind) for kind in types}


def loss_or_zero(collected: dict[str, nnx.State], config: DeepSeekConfig) -> jax.Array:
    """MaxText's ``calculate_mtp_loss``: a missing collection counts as a loss of 0.0."""
    block = collected["mtp_losses"].get("mtp_block")
    if block is None:
        return jnp.zeros(())
    losses, weights = block["losses"].get_value(), block["weights"].get_value()
    return loss.mtp_loss(losses, weights, config.mtp_loss_scaling_factor)


def generic_first(model: nnx.Module) -> dict[str, nnx.State]:
    """The collecting before the fix."""
    return pop_in_order(model, GENERIC_FIRST)


def specific_first(model: nnx.Module) -> dict[str, nnx.State]:
    """The collecting in the PR."""
    return pop_in_order(model, SPECIFIC_FIRST)


broken = MtpTerms(collect=generic_first, loss=loss_or_zero)
fixed_as_in_pr = MtpTerms(collect=specific_first, loss=loss_or_zero)
fixed = mtp_term  # any order of types, and no default: what is missing raises


def mtp_gradients(result: Result) -> dict[str, np.ndarray]:
    """The gradients of the MTP block's weights, by path."""
    return {p: g for p, g in result.gradients.items() if p.startswith("mtp_block.")}


def experiment(config: DeepSeekConfig, batch: Batch) -> dict[str, Result]:
    """Broken NNX, fixed NNX and Linen, from the same weights on the same batch."""
    model = nnx_model.create(config)
    return {
        "broken": nnx_loss_and_gradients(model, batch, term=broken),
        "fixed": nnx_loss_and_gradients(model, batch, term=fixed),
        "linen": linen_loss_and_gradients(config, port.to_linen(model), batch),
    }


def run(config: DeepSeekConfig) -> Finding:
    """Reproduces and verifies with real arrays: three forwards and backwards of ``config``."""
    config = config.replace(mtp_num_layers=max(1, config.mtp_num_layers))
    results = experiment(config, inputs.synthetic(config))
    bad, good, linen = results["broken"], results["fixed"], results["linen"]
    dead = [p for p, g in mtp_gradients(bad).items() if np.any(g)]
    alive = [p for p, g in mtp_gradients(good).items() if not np.any(g)]
    evidence = {
        "broken_mtp_loss": float(bad.mtp_loss),
        "fixed_mtp_loss": float(good.mtp_loss),
        "linen_mtp_loss": float(linen.mtp_loss),
        "broken_mtp_grad_norm": norm(mtp_gradients(bad).values()),
        "fixed_mtp_grad_norm": norm(mtp_gradients(good).values()),
        "linen_mtp_grad_norm": norm(mtp_gradients(linen).values()),
        "broken_loss": float(bad.loss),
        "fixed_loss": float(good.loss),
        "linen_loss": float(linen.loss),
        "mtp_weights": len(mtp_gradients(good)),
    }
    return Finding(
        case=NAME,
        broken_shows=f"mtp_loss {evidence['broken_mtp_loss']}, "
        f"MTP gradient norm {evidence['broken_mtp_grad_norm']}",
        fixed_shows=f"mtp_loss {evidence['fixed_mtp_loss']:.4f}, "
        f"Linen {evidence['linen_mtp_loss']:.4f}",
        broken=(
            Claim("mtp_loss is exactly 0.0", evidence["broken_mtp_loss"] == 0.0),
            Claim("the gradient of every MTP weight is exactly 0", not dead),
            Claim(
                "the total loss is short by exactly the MTP term",
                bool(bad.loss + good.mtp_loss == good.loss),
            ),
        ),
        fixed=(
            Claim("mtp_loss equals Linen's", agrees(good.mtp_loss, linen.mtp_loss)),
            Claim("the total loss equals Linen's", agrees(good.loss, linen.loss)),
            Claim(
                "every MTP weight learns, but for the routing bias",
                all(path.endswith("gate.bias") for path in alive),
            ),
        ),
        evidence=evidence,
    )


def agrees(a, b, tolerance: float = 1e-6) -> bool:
    """Whether two positive figures differ relatively by at most ``tolerance``."""
    return bool(abs(a - b) <= tolerance * abs(b)) and bool(b > 0)
