"""Bug 2: quantizing a model with multi-token prediction crashes in ``jnp.roll``.

qwix quantizes an NNX model by running a real forward with exactly the inputs it is given. MaxText
gave it tokens, positions and segment ids; its MTP block also reads the targets, which were then
None (mended in a8427ccb7 of PR #4525). A Linen model is only wrapped, and never run.
"""

import traceback

import flax.linen as nn
import jax
import qwix
from flax import nnx

from nnxlab import compat
from nnxlab.audit import quantized as audit
from nnxlab.cases.finding import Claim, Finding
from nnxlab.model import inputs, linen_model, nnx_model
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import MissingInputError
from nnxlab.model.nnx_model import DeepSeek
from nnxlab.quantization import PROVIDERS, Provider, quantize, unused_rules

NAME = "qwix-targets"
EXPECTED_ERROR = (
    "TypeError: roll requires ndarray or scalar arguments, got <class 'NoneType'> at position 0."
)


def broken(model: DeepSeek, provider: qwix.QtProvider) -> DeepSeek:
    """MaxText's call before the fix: three inputs, whatever the config; abstract result."""
    batch = inputs.dummy(model.config)
    return _traced(model, provider, batch.tokens, batch.positions, batch.segment_ids)


def fixed_as_in_pr(model: DeepSeek, provider: qwix.QtProvider) -> DeepSeek:
    """MaxText's call in the fix: dummy targets where there are MTP layers; abstract result."""
    batch = inputs.dummy(model.config)
    return _traced(model, provider, *batch)


fixed = quantize  # inputs from one place that knows the config, checked; leaves nothing behind


class GuardedDeepSeek(DeepSeek):
    """The tempting fix: where targets are missing, the MTP block is passed by."""

    def __call__(self, tokens, positions, segment_ids, targets=None, target_mask=None, **options):
        """As ``DeepSeek``; without targets no MTP layer runs, so none is quantized."""
        if targets is not None:
            inputs = (tokens, positions, segment_ids, targets, target_mask)
            return super().__call__(*inputs, **options)
        hidden = self.decoder(self.token_embedder(tokens), positions, segment_ids)
        return self.decoder.head(hidden)


def abstract_guarded(config: DeepSeekConfig) -> GuardedDeepSeek:
    """An abstract ``GuardedDeepSeek``."""
    return compat.eval_shape(lambda: GuardedDeepSeek(config, rngs=nnx.Rngs(0)))


def call_path(call, *args) -> list[str]:
    """The functions of cases and model on the stack when ``call`` raises, outermost first."""
    try:
        call(*args)
    except Exception as error:  # whatever it is, its way is the evidence
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    else:
        return []
    ours = ("nnxlab.cases.", "nnxlab.model.")
    inside = [f.f_code for f in frames if f.f_globals.get("__name__", "").startswith(ours)]
    names = [code.co_qualname for code in inside if code.co_name != "call_path"]
    return [name for name in names if "<" not in name and not name.startswith("_")]


def error_of(call, *args) -> str:
    """``Type: message`` of what ``call`` raises, its first line; empty if it raises nothing."""
    try:
        call(*args)
    except Exception as error:  # whatever it is, it is the evidence
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def mtp_modules(provider: Provider) -> list[str]:
    """Paths of the MTP block's modules that a rule quantized."""
    return sorted({path for path, _ in provider.quantized if path.startswith("mtp_block/")})


def linen_error(config: DeepSeekConfig, provider: qwix.QtProvider) -> str:
    """The error of quantizing and initialising the Linen model without targets, or ""."""
    batch = inputs.dummy(config)[:3]

    def initialise():
        model: nn.Module = qwix.quantize_model(linen_model.DeepSeek(config), provider)
        return jax.eval_shape(model.init, jax.random.key(0), *batch)

    return error_of(initialise)


def run(config: DeepSeekConfig) -> Finding:
    """Reproduces and verifies for both providers; every forward is only traced."""
    config = config.replace(mtp_num_layers=max(1, config.mtp_num_layers))
    model, abstract = nnx_model.create(config), nnx_model.abstract(config)
    without_mtp = nnx_model.abstract(config.replace(mtp_num_layers=0))
    evidence = {"leftovers": 0, "unused_rules": 0, "leftovers_of_qwix_itself": 0}
    broken_claims, fixed_claims = [], []
    for name, make in PROVIDERS.items():
        error, provider = error_of(broken, abstract, make()), make()
        clean = fixed(model, provider)
        left, unused = audit.leftovers(model, clean), unused_rules(provider)
        missed = [m for m in audit.unreached(clean, provider.quantized) if "mtp_block" in m]
        left_by_qwix = audit.leftovers(abstract, fixed_as_in_pr(abstract, make()))
        missing = error_of(fixed, model, make(), inputs.dummy(config)._replace(targets=None))
        evidence["broken_error"] = error
        evidence["leftovers"] += len(left)
        evidence["unused_rules"] += len(unused)
        evidence["leftovers_of_qwix_itself"] += len(left_by_qwix)
        evidence["mtp_modules_quantized"] = len(mtp_modules(provider))
        broken_claims += [
            Claim(f"{name}: the exact TypeError", error == EXPECTED_ERROR),
            Claim(f"{name}: no error without MTP", not error_of(broken, without_mtp, make())),
            Claim(f"{name}: no error in Linen", not linen_error(config, make())),
            Claim(f"{name}: qwix leaves sown variables behind", bool(left_by_qwix)),
        ]
        fixed_claims += [
            Claim(f"{name}: nothing is left behind", not left),
            Claim(f"{name}: every rule applied", not unused),
            Claim(
                f"{name}: every MTP matrix is quantized", bool(mtp_modules(provider)) and not missed
            ),
            Claim(f"{name}: a missing input is named", missing.startswith(_MISSING)),
        ]
    return Finding(
        case=NAME,
        broken_shows=evidence["broken_error"],
        fixed_shows=f"{evidence['mtp_modules_quantized']} MTP modules quantized, "
        f"{evidence['leftovers']} leftovers, {evidence['unused_rules']} unused rules",
        broken=tuple(broken_claims),
        fixed=tuple(fixed_claims),
        evidence=evidence,
    )


_MISSING = f"{MissingInputError.__name__}: the model needs targets"


def _traced(model: DeepSeek, provider: qwix.QtProvider, *batch) -> DeepSeek:
    return compat.eval_shape(lambda model: qwix.quantize_model(model, provider, *batch), model)
