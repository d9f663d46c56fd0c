"""What the model is called with, and which of it a config needs: the one place that knows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nnxlab.model.config import DeepSeekConfig


class Batch(NamedTuple):
    """One batch of packed documents; ``model(*batch)`` is the call. All int32 [B, S].

    Attributes:
      tokens: Inputs.
      positions: Counted from 0 within each document.
      segment_ids: Number of the document, from 1; 0 is padding.
      targets: The token after each input.
      target_mask: Non-zero where a target counts; segment ids will do.
    """

    tokens: jax.Array
    positions: jax.Array
    segment_ids: jax.Array
    targets: jax.Array | None = None
    target_mask: jax.Array | None = None


class MissingInputError(ValueError):
    """The config needs an input that was not given."""


def needed(config: DeepSeekConfig) -> tuple[str, ...]:
    """Names of the inputs without which a model of ``config`` cannot run."""
    always = ("tokens", "positions", "segment_ids")
    return (*always, "targets", "target_mask") if config.mtp_num_layers else always


def check(config: DeepSeekConfig, batch: Batch) -> None:
    """Raises before anything is traced if ``batch`` lacks an input or the shapes disagree.

    Raises:
      MissingInputError: Names every missing input and why it is needed.
      ValueError: Names every input whose shape is not that of the tokens.
    """
    missing = [name for name in needed(config) if getattr(batch, name) is None]
    if missing:
        raise MissingInputError(
            f"the model needs {', '.join(missing)}: with mtp_num_layers={config.mtp_num_layers} "
            "every forward, also the one that quantization runs, reads "
            f"{', '.join(needed(config))}. nnxlab.model.inputs.dummy(config) makes a batch that "
            "has them all."
        )
    shapes = {name: np.shape(x) for name, x in batch._asdict().items() if x is not None}
    if len(set(shapes.values())) > 1 or len(shapes["tokens"]) != 2:
        raise ValueError(f"all inputs must have one shape [batch, length]; got {shapes}")


def check_targets(targets, target_mask) -> None:
    """Raises before anything is traced if a loss is asked for without its targets.

    Raises:
      MissingInputError: Names what is missing.
    """
    given = {"targets": targets, "target_mask": target_mask}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise MissingInputError(f"scores=True needs {', '.join(missing)}: a loss has targets")


def dummy(config: DeepSeekConfig, batch: int = 1, length: int = 8) -> Batch:
    """A batch of ones with every input that ``config`` needs and None for the others."""
    ones = jnp.ones((batch, length), jnp.int32)
    return Batch(**{name: ones for name in needed(config)})


def synthetic(config: DeepSeekConfig, batch: int = 8, length: int = 16, seed: int = 0) -> Batch:
    """Uniformly random tokens, one document a row, as MaxText's ``dataset_type=synthetic``.

    Targets are the tokens shifted by one, so every position has one.
    """
    random = np.random.default_rng(seed)
    stream = random.integers(0, config.vocab_size, (batch, length + 1), dtype=np.int32)
    ones = jnp.ones((batch, length), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    return Batch(jnp.asarray(stream[:, :-1]), positions, ones, jnp.asarray(stream[:, 1:]), ones)
