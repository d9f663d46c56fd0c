"""After quantizing an NNX model: what was left behind, and what was not reached."""

import jax
import jax.numpy as jnp
import qwix
from flax import nnx

from nnxlab.model.scan_axis import POSITION_KEY, dotted

_QUANTIZATION = nnx.Any(nnx.Param, qwix.QuantStat)


def leftovers(before: nnx.Module, after: nnx.Module) -> list[str]:
    """What differs between two models and is neither a parameter nor a statistic of qwix.

    qwix quantizes an NNX model by running it once, on dummy data. Whatever the forward changes
    stays in the copy: sown variables, rng counts, BatchNorm means, counters, KV-cache indices.

    Args:
      before: The model that was quantized.
      after: What came back.

    Returns:
      One line a difference: path, type, and whether it was added, lost or changed.
    """
    old = dict(nnx.to_flat_state(nnx.state(before, nnx.Not(_QUANTIZATION))))
    new = dict(nnx.to_flat_state(nnx.state(after, nnx.Not(_QUANTIZATION))))
    lines = []
    for path in sorted(old.keys() | new.keys(), key=str):
        variable = new.get(path, old.get(path))
        if path not in old or path not in new:
            change = "added" if path in new else "lost"
        elif _same(old[path], new[path]):
            continue
        else:
            change = "changed"
        lines.append(f"{dotted(path)} ({type(variable).__name__}): {change}")
    return lines


def unreached(model: nnx.Module, quantized_at: set[tuple[str, str]]) -> list[str]:
    """Modules that own a matrix and that no quantization rule reached.

    A forward that takes a shorter way on dummy inputs (``if targets is not None:``) raises
    nothing and leaves the branch it skipped unquantized: its modules are listed here.

    Args:
      model: The quantized model.
      quantized_at: ``quantization.Provider.quantized``, pairs of module path and operation.

    Returns:
      Module paths, sorted; those that a rule set leaves out on purpose are among them.
    """
    reached = {path for path, _ in quantized_at}
    params = nnx.to_flat_state(nnx.state(model, nnx.Param))
    owners = {"/".join(map(str, path[:-1])) for path, v in params if _layer_rank(v) > 1}
    return sorted(owners - reached)


def _layer_rank(variable: nnx.Variable) -> int:
    return len(variable.shape) - (POSITION_KEY in variable.get_metadata())


def _same(a: nnx.Variable, b: nnx.Variable) -> bool:
    old, new = jax.tree.leaves(a.get_value()), jax.tree.leaves(b.get_value())
    return len(old) == len(new) and all(map(_equal, old, new))


def _equal(a, b) -> bool:
    if isinstance(a, jax.ShapeDtypeStruct) or isinstance(b, jax.ShapeDtypeStruct):
        return a.shape == b.shape and a.dtype == b.dtype
    return jnp.shape(a) == jnp.shape(b) and bool(jnp.all(a == b))
