"""Quantizing a model with qwix and leaving nothing behind but the quantization."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import qwix
from flax import nnx

try:  # qwix exports no way to ask for the current module's path
    from qwix._src.utils import flax_util
except ImportError:  # where qwix 0.1.6 has it
    from qwix._src import flax_util

from nnxlab import compat
from nnxlab.model import inputs
from nnxlab.model.inputs import Batch
from nnxlab.model.nnx_model import DeepSeek

# The weight matmuls of every layer, MTP layers included. MaxText 0.2.4's own rule is
# "decoder/.*layers.*" and so never reaches its MTP block.
_LAYERS = r"(decoder/.*layers|mtp_block)/.*"
_EXPERTS = r"(decoder/.*layers|mtp_block)/.*MoeBlock_0"
MAXTEXT_LAYERS = r"decoder/.*layers.*"


class Provider(qwix.QtProvider):
    """qwix's provider for quantized training that also records what it quantized.

    Attributes:
      quantized: Pairs of module path and operation that a rule applied to.
      seen: The same for every operation that it was asked about.
    """

    def __init__(self, rules):
        super().__init__(rules)
        self.quantized: set[tuple[str, str]] = set()
        self.seen: set[tuple[str, str]] = set()

    def _get_current_rule_and_op_id(self, op_name, **options):
        rule, op_id = super()._get_current_rule_and_op_id(op_name, **options)
        at = ("/".join(map(str, flax_util.get_current_module_path())), op_name)
        self.seen.add(at)
        if rule is not None:
            self.quantized.add(at)
        return rule, op_id


def fp8_full() -> Provider:
    """MaxText's ``fp8_full``: e4m3 forward, e5m2 backward."""
    return _provider(jnp.float8_e4m3fn, jnp.float8_e4m3fn, jnp.float8_e5m2)


def int8() -> Provider:
    """8-bit integers forward and backward, as MaxText's ``int8``."""
    return _provider(jnp.int8, jnp.int8, jnp.int8)


def maxtext_fp8_full() -> Provider:
    """The rule of MaxText 0.2.4 to the letter; it names neither the MTP block nor einsum."""
    return _provider(
        jnp.float8_e4m3fn, jnp.float8_e4m3fn, jnp.float8_e5m2, {MAXTEXT_LAYERS: "dot_general"}
    )


PROVIDERS: dict[str, Callable[[], Provider]] = {"fp8_full": fp8_full, "int8": int8}


class UnusedRuleError(ValueError):
    """A quantization rule applied to no operation of the model."""


def quantize(model: DeepSeek, provider: qwix.QtProvider, batch: Batch | None = None) -> DeepSeek:
    """``quantize_clean`` for a ``DeepSeek``, with inputs made for its config if none are given.

    Raises:
      MissingInputError: ``batch`` lacks an input that the config needs; before anything is traced.
      UnusedRuleError: As ``quantize_clean``.
    """
    batch = inputs.dummy(model.config) if batch is None else batch
    inputs.check(model.config, batch)
    return quantize_clean(model, provider, *batch)


def quantize_clean(model: nnx.Module, provider: qwix.QtProvider, *call_inputs) -> nnx.Module:
    """A quantized copy of ``model`` that differs from it by the quantization and nothing else.

    qwix runs one forward, which sows variables, moves rng counts and feeds running statistics;
    whatever is no parameter and no statistic of qwix is put back or taken out. The forward is
    only traced: under jit its result is unused, and no operation of it is compiled.

    Args:
      model: Any NNX model, abstract or not; unchanged.
      provider: Its rules must all apply.
      *call_inputs: What ``model`` is called with.

    Raises:
      UnusedRuleError: Names every rule that applied to nothing.
    """

    def traced(model):
        quantized = qwix.quantize_model(model, provider, *call_inputs)
        restore(quantized, model)
        return quantized

    leaves = jax.tree.leaves(nnx.state(model))
    abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    quantized = compat.eval_shape(traced, model) if abstract else nnx.jit(traced)(model)
    unused = unused_rules(provider)
    if unused:
        raise UnusedRuleError("quantization rules applied to nothing: " + "; ".join(unused))
    return quantized


def restore(quantized: nnx.Module, model: nnx.Module) -> None:
    """Gives ``quantized`` the state that ``model`` has, parameters and statistics apart."""
    own = nnx.Any(nnx.Param, qwix.QuantStat)
    kept = nnx.state(model, nnx.Not(own))
    before = {path for path, _ in nnx.to_flat_state(kept)}
    nnx.pop(quantized, nnx.All(nnx.Not(own), lambda path, _: tuple(path) not in before))
    nnx.update(quantized, kept)


def unused_rules(provider: qwix.QtProvider) -> list[str]:
    """The rules of ``provider`` that applied to no operation, as ``module_path (op_names)``."""
    rules = provider.get_unused_rules()
    return [f"{rule.module_path} ({', '.join(rule.op_names or ['any op'])})" for rule in rules]


def _provider(weight, activation, backward, operation_at: dict[str, str] | None = None) -> Provider:
    operation_at = operation_at or {_EXPERTS: "einsum", _LAYERS: "dot_general"}
    rules = [
        qwix.QtRule(
            module_path=path,
            op_names=(operation,),
            weight_qtype=weight,
            act_qtype=activation,
            bwd_qtype=backward,
        )
        for path, operation in operation_at.items()
    ]
    return Provider(rules)
