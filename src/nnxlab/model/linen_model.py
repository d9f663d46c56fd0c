"""DeepSeek-V3 with multi-token prediction in Flax Linen: the reference that bug 1 cannot reach.

Linen sows into collections by *name*: ``sow("mtp_losses", ...)`` fills the collection
``mtp_losses`` and no other, whatever types there are. The wiring is that of ``nnx_model``.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from nnxlab.model import head, inputs, loss, ops, weights
from nnxlab.model.config import REMAT_POLICIES, DeepSeekConfig
from nnxlab.model.linen_layers import Dense, Layer, RMSNorm, parameter


class Embed(nn.Module):
    """Token embedding: int [B, S] -> [B, S, D]."""

    config: DeepSeekConfig

    def setup(self):
        self.embedding = parameter(self, "embedding", weights.embedding(self.config))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        embedded = jnp.take(self.embedding, tokens, axis=0)
        return ops.by_batch(embedded.astype(self.config.activation_dtype))


class Decoder(nn.Module):
    """The two stacks of layers, scanned by ``nn.scan``, and the output head."""

    config: DeepSeekConfig

    def setup(self):
        c = self.config
        if c.first_num_dense_layers:
            self.dense_layers = _scanned(c, c.first_num_dense_layers, "dense_layers")
        if c.num_moe_layers:
            self.moe_layers = _scanned(c, c.num_moe_layers, "moe_layers")
        self.decoder_norm = RMSNorm(weights.scale(c.emb_dim), c)
        self.logits_dense = Dense(weights.logits(c), c)

    def __call__(self, x, positions, segment_ids) -> jax.Array:
        """[B, S, D], [B, S], [B, S] -> hidden states [B, S, D], not yet normed."""
        if self.config.first_num_dense_layers:
            x, _ = self.dense_layers(x, positions, segment_ids)
        if self.config.num_moe_layers:
            x, _ = self.moe_layers(x, positions, segment_ids)
        return x

    def head(self, hidden: jax.Array) -> jax.Array:
        """[B, S, D] -> logits float32 [B, S, V]."""
        return ops.by_batch(self.logits_dense(self.decoder_norm(hidden)).astype(jnp.float32))

    def score(self, hidden: jax.Array, targets: jax.Array, mask: jax.Array) -> loss.Scores:
        """[B, S, D], [B, S], [B, S] -> losses and predictions of the head."""
        kernel, dtype = self.logits_dense.kernel, self.config.activation_dtype
        return head.score(self.decoder_norm(hidden), kernel, targets, mask, dtype)


class MtpLayer(nn.Module):
    """One depth of MTP: Layer(W concat(norm(embedding), norm(hidden))), arXiv 2412.19437 (21)."""

    config: DeepSeekConfig
    depth: int

    @nn.compact
    def __call__(self, hidden, embedded, positions, segment_ids) -> jax.Array:
        """[B, S, D], [B, S, D], [B, S], [B, S] -> [B, S, D]."""
        c, prefix, norm = self.config, f"mtp_{self.depth}_", weights.scale(self.config.emb_dim)
        embedded = RMSNorm(norm, c, name=prefix + "embedding_norm")(embedded)
        hidden = RMSNorm(norm, c, name=prefix + "hidden_state_norm")(hidden)
        project = Dense(weights.mtp_projection(c), c, name=prefix + "projection")
        layer = Layer(c, moe=True, name=prefix + "transformer_layer")
        x = project(jnp.concatenate([embedded, hidden], axis=-1))
        return layer(x, positions, segment_ids)[0]


class MtpBlock(nn.Module):
    """The depths in a row; sows into ``mtp_losses`` and ``mtp_acceptance``."""

    config: DeepSeekConfig

    @nn.compact
    def __call__(self, embed, decoder, hidden, tokens, positions, segment_ids, targets, mask):
        """Predicts one more token ahead at each depth; inputs [B, S] and hidden [B, S, D]."""
        for depth in range(1, self.config.mtp_num_layers + 1):
            tokens, targets, mask = (loss.roll_left(x) for x in (tokens, targets, mask))
            layer = MtpLayer(self.config, depth, name=f"mtp_layer_{depth}")
            hidden = layer(hidden, embed(tokens), positions, segment_ids)
            scores = decoder.score(hidden, targets, mask)
            self.sow("mtp_losses", "losses", scores.losses)
            self.sow("mtp_losses", "weights", jnp.sum(mask))
            self.sow("mtp_acceptance", "predictions", scores.predictions)
            self.sow("mtp_acceptance", "mask", mask)


class DeepSeek(nn.Module):
    """The whole model; arguments and result as ``nnx_model.DeepSeek``.

    While Linen initialises, targets are filled in where they are missing, as MaxText's
    ``is_initializing`` guard does: the reason that bug 2 never showed on this path.
    """

    config: DeepSeekConfig

    def setup(self):
        self.token_embedder = Embed(self.config)
        self.decoder = Decoder(self.config)
        if self.config.mtp_num_layers:
            self.mtp_block = MtpBlock(self.config)

    def __call__(
        self, tokens, positions, segment_ids, targets=None, target_mask=None, *, scores=False
    ):
        """Logits, float32 [B, S, V], or ``loss.Scores``; sows where the collections are mutable."""
        if self.is_initializing() and targets is None:
            targets = target_mask = jnp.ones_like(tokens)
        if scores:
            inputs.check_targets(targets, target_mask)
        hidden = self.decoder(self.token_embedder(tokens), positions, segment_ids)
        mask = target_mask if target_mask is None else loss.loss_mask(target_mask)
        if self.config.mtp_num_layers:
            rolled = (tokens, positions, segment_ids, targets, mask)
            self.mtp_block(self.token_embedder, self.decoder, hidden, *rolled)
        return self.decoder.score(hidden, targets, mask) if scores else self.decoder.head(hidden)


def scan_axis(config: DeepSeekConfig) -> int:
    """The scan axis of every Linen weight.

    ``nn.scan`` takes one axis for a whole collection, so the weights of rank 1 (norms) cap it at
    1, and for a negative one it puts the name of the axis a place too early. 0 and 1 are passed
    on; for any other ``param_scan_axis`` Linen stacks at 0.
    """
    return config.param_scan_axis if config.param_scan_axis in (0, 1) else 0


def _scanned(config: DeepSeekConfig, length: int, name: str) -> nn.Module:
    layer = Layer
    if config.remat_policy != "none":
        layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat_policy], prevent_cse=False)
    scanned = nn.scan(
        layer,
        variable_axes={"params": scan_axis(config)},
        split_rngs={"params": True},
        in_axes=(nn.broadcast, nn.broadcast),
        length=length,
        metadata_params={nn.PARTITION_NAME: name},
    )
    return scanned(config, moe=name == "moe_layers")
