"""Other ways to lose the same loss: one pop, one split, and flax's newer ``nnx.capture``."""

import jax
import jax.numpy as jnp
import pandas as pd
from flax import nnx

from nnxlab.model.sown import mtp_losses


class Sower(nnx.Module):
    """Sows one generic and one MTP value: the smallest model that can lose a loss."""

    def __init__(self):
        self.weight = nnx.Param(jnp.ones(()))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(nnx.Intermediate, "activation", x)
        self.sow(mtp_losses, "losses", self.weight[...] * x)
        return x


class Assigner(Sower):
    """Assigns the MTP value, as MaxText 0.2.4 does, and sows nothing."""

    def __call__(self, x: jax.Array) -> jax.Array:
        self.losses = mtp_losses(self.weight[...] * x)
        return x


class Scanner(nnx.Module):
    """Runs a ``Sower`` inside ``jax.lax.scan`` by split and merge."""

    def __init__(self):
        self.sower = Sower()

    def __call__(self, x: jax.Array) -> jax.Array:
        graphdef, state = nnx.split(self.sower)

        def body(x, _):
            return nnx.merge(graphdef, state, copy=True)(x), None

        return jax.lax.scan(body, x, None, length=2)[0]


def by_filters() -> pd.DataFrame:
    """How many ``mtp_losses`` variables each spelling of pop and split finds; 1 was sown."""

    def sown() -> Sower:
        model = Sower()
        model(jnp.ones(()))
        return model

    generic, specific = nnx.Intermediate, mtp_losses
    model = sown()
    two_pops = (nnx.pop(model, generic), nnx.pop(model, specific))[1]
    rows = [
        ("pop(m, Intermediate); pop(m, mtp_losses)", two_pops),
        ("pop(m, Intermediate, mtp_losses)", nnx.pop(sown(), generic, specific)[1]),
        ("pop(m, mtp_losses, Intermediate)", nnx.pop(sown(), specific, generic)[0]),
        ("split(m, Intermediate, mtp_losses, ...)", nnx.split(sown(), generic, specific, ...)[2]),
        ("split(m, mtp_losses, Intermediate, ...)", nnx.split(sown(), specific, generic, ...)[1]),
        ("state(m, Intermediate, mtp_losses)", nnx.state(sown(), generic, specific)[1]),
    ]
    return _counted(rows)


def by_capture() -> pd.DataFrame:
    """How many ``mtp_losses`` variables ``nnx.capture`` finds in five situations; 1 was sown.

    Raises:
      RuntimeError: This flax has no ``nnx.capture`` (it came with 0.12.6).
    """
    if not hasattr(nnx, "capture"):
        raise RuntimeError("this flax has no nnx.capture: it needs flax >= 0.12.6")
    generic, specific, one = nnx.Intermediate, mtp_losses, jnp.ones(())
    rows = [
        ("capture(mtp_losses), sown", nnx.capture(Sower(), specific)(one)[1]),
        ("capture(Intermediate): exact type only", nnx.capture(Sower(), generic)(one)[1]),
        (
            "capture(Intermediate, mtp_losses): child emptied",
            nnx.capture(Sower(), generic, specific)(one)[2],
        ),
        ("capture(mtp_losses), assigned", nnx.capture(Assigner(), specific)(one)[1]),
        ("capture(mtp_losses), in jax.lax.scan", nnx.capture(Scanner(), specific)(one)[1]),
    ]
    return _counted(rows)


def _counted(rows: list[tuple[str, nnx.State]]) -> pd.DataFrame:
    counts = [
        (how, sum("losses" in path for path, _ in nnx.to_flat_state(state))) for how, state in rows
    ]
    return pd.DataFrame(counts, columns=["how", "mtp_losses found"])
