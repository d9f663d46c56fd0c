"""DeepSeek-V3 with multi-token prediction in Flax NNX, wired as MaxText wires it."""

import jax
import jax.numpy as jnp
from flax import nnx

from nnxlab import compat, devices
from nnxlab.model import head, inputs, loss, ops, stack, weights
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.nnx_layers import Dense, Layer, RMSNorm, parameter
from nnxlab.model.scan_axis import RECORDED, RoundTrip
from nnxlab.model.sown import mtp_acceptance, mtp_losses
from nnxlab.model.weights import Draws

_SLOW_TO_DRAW = 5_000_000  # parameters; from here on unoptimised code costs more than it saves


class Embed(nnx.Module):
    """Token embedding: int [B, S] -> [B, S, D]."""

    def __init__(self, config: DeepSeekConfig, draws: Draws):
        self.embedding = parameter(weights.embedding(config), draws)
        self.dtype = config.activation_dtype

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return ops.by_batch(jnp.take(self.embedding[...], tokens, axis=0).astype(self.dtype))


class Decoder(nnx.Module):
    """The two stacks of layers and the output head."""

    def __init__(self, config: DeepSeekConfig, trip: RoundTrip, rngs: nnx.Rngs, draws: Draws):
        self.config, self.trip = config, trip
        for name, length in _stacks(config).items():
            layers = stack.create(
                lambda rngs, moe=name == "moe_layers": Layer(config, moe=moe, rngs=rngs),
                length,
                name,
                config.param_scan_axis,
                rngs,
            )
            setattr(self, name, layers)
        self.decoder_norm = RMSNorm(weights.scale(config.emb_dim), config, draws)
        self.logits_dense = Dense(weights.logits(config), config, draws)

    def __call__(self, x, positions, segment_ids) -> jax.Array:
        """[B, S, D], [B, S], [B, S] -> hidden states [B, S, D], not yet normed."""
        for name in _stacks(self.config):
            x = stack.apply(
                getattr(self, name),
                x,
                lambda layer, x: layer(x, positions, segment_ids),
                trip=self.trip,
                remat_policy=self.config.remat_policy,
                where=f"decoder.{name}",
            )
        return x

    def head(self, hidden: jax.Array) -> jax.Array:
        """[B, S, D] -> logits float32 [B, S, V]."""
        return ops.by_batch(self.logits_dense(self.decoder_norm(hidden)).astype(jnp.float32))

    def score(self, hidden: jax.Array, targets: jax.Array, mask: jax.Array) -> loss.Scores:
        """[B, S, D], [B, S], [B, S] -> losses and predictions of the head."""
        kernel, dtype = self.logits_dense.kernel[...], self.config.activation_dtype
        return head.score(self.decoder_norm(hidden), kernel, targets, mask, dtype)


class MtpLayer(nnx.Module):
    """One depth of MTP: Layer(W concat(norm(embedding), norm(hidden))), arXiv 2412.19437 (21)."""

    def __init__(self, config: DeepSeekConfig, depth: int, rngs: nnx.Rngs):
        norm, projection = weights.scale(config.emb_dim), weights.mtp_projection(config)
        self.depth, draws = depth, Draws(rngs.params(), [projection])
        parts = {
            "embedding_norm": RMSNorm(norm, config, draws),
            "hidden_state_norm": RMSNorm(norm, config, draws),
            "projection": Dense(projection, config, draws),
            "transformer_layer": Layer(config, moe=True, rngs=rngs),
        }
        for name, part in parts.items():
            setattr(self, f"mtp_{depth}_{name}", part)

    def __call__(self, hidden, embedded, positions, segment_ids) -> jax.Array:
        """[B, S, D], [B, S, D], [B, S], [B, S] -> [B, S, D]."""
        norm_e, norm_h, project, layer = (
            getattr(self, f"mtp_{self.depth}_{name}")
            for name in ("embedding_norm", "hidden_state_norm", "projection", "transformer_layer")
        )
        joined = jnp.concatenate([norm_e(embedded), norm_h(hidden)], axis=-1)
        return layer(project(joined), positions, segment_ids)


class MtpBlock(nnx.Module):
    """The depths in a row; sows ``mtp_losses`` and ``mtp_acceptance``."""

    def __init__(self, config: DeepSeekConfig, rngs: nnx.Rngs):
        self.config = config
        for depth in range(1, config.mtp_num_layers + 1):
            setattr(self, f"mtp_layer_{depth}", MtpLayer(config, depth, rngs))

    def __call__(self, embed, decoder, hidden, tokens, positions, segment_ids, targets, mask):
        """Predicts one more token ahead at each depth; inputs [B, S] and hidden [B, S, D]."""
        for depth in range(1, self.config.mtp_num_layers + 1):
            tokens, targets, mask = map(loss.roll_left, (tokens, targets, mask))
            layer = getattr(self, f"mtp_layer_{depth}")
            hidden = layer(hidden, embed(tokens), positions, segment_ids)
            scores = decoder.score(hidden, targets, mask)
            self.sow(mtp_losses, "losses", scores.losses)
            self.sow(mtp_losses, "weights", jnp.sum(mask))
            self.sow(mtp_acceptance, "predictions", scores.predictions)
            self.sow(mtp_acceptance, "mask", mask)


class DeepSeek(nnx.Module):
    """The whole model.

    Args:
      config: Sizes; ``mtp_num_layers`` 0 leaves the MTP block out.
      rngs: The random stream ``params`` is used.
      trip: How a scan treats the sharding metadata of the stacks; the cases put faults in here.
    """

    def __init__(self, config: DeepSeekConfig, *, rngs: nnx.Rngs, trip: RoundTrip = RECORDED):
        self.config = config
        draws = Draws(rngs.params(), [weights.embedding(config), weights.logits(config)])
        self.token_embedder = Embed(config, draws)
        self.decoder = Decoder(config, trip, rngs, draws)
        if config.mtp_num_layers:
            self.mtp_block = MtpBlock(config, rngs)

    def __call__(
        self, tokens, positions, segment_ids, targets=None, target_mask=None, *, scores=False
    ):
        """Logits, float32 [B, S, V]; with MTP layers also sows their losses.

        Args:
          tokens: int [B, S].
          positions: int [B, S], counted from 0 in each document.
          segment_ids: int [B, S], the document's number; 0 is padding.
          targets: int [B, S]; needed with MTP layers, unused without.
          target_mask: [B, S], non-zero where a target counts; as ``targets``.
          scores: Return ``loss.Scores`` of the targets instead of the logits.

        Raises:
          MissingInputError: Scores are asked for without targets.
        """
        if scores:
            inputs.check_targets(targets, target_mask)
        hidden = self.decoder(self.token_embedder(tokens), positions, segment_ids)
        mask = target_mask if target_mask is None else loss.loss_mask(target_mask)
        if self.config.mtp_num_layers:
            rolled = (tokens, positions, segment_ids, targets, mask)
            self.mtp_block(self.token_embedder, self.decoder, hidden, *rolled)
        return self.decoder.score(hidden, targets, mask) if scores else self.decoder.head(hidden)


def _stacks(config: DeepSeekConfig) -> dict[str, int]:
    lengths = {
        "dense_layers": config.first_num_dense_layers,
        "moe_layers": config.num_moe_layers,
    }
    return {name: length for name, length in lengths.items() if length}


def create(config: DeepSeekConfig, *, seed: int = 0, trip: RoundTrip = RECORDED) -> DeepSeek:
    """A model with initial weights from ``seed``, built under jit: seconds, not tens of them."""

    def state():
        return nnx.state(DeepSeek(config, rngs=nnx.Rngs(params=seed), trip=trip))

    graphdef, shapes = nnx.split(abstract(config, trip=trip))
    small = sum(leaf.size for leaf in jax.tree.leaves(shapes)) < _SLOW_TO_DRAW
    options = devices.one_shot() if small else None
    return nnx.merge(graphdef, jax.jit(state, compiler_options=options)())


def abstract(config: DeepSeekConfig, *, trip: RoundTrip = RECORDED) -> DeepSeek:
    """The same model with shapes for values: any size, no array allocated."""
    return compat.eval_shape(lambda: DeepSeek(config, rngs=nnx.Rngs(params=0), trip=trip))
