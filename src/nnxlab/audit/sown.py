"""What a forward sows, held against what the filters of a collector take, and in which order."""

import pandas as pd
from flax import nnx

from nnxlab import compat
from nnxlab.model.scan_axis import dotted


class SownError(ValueError):
    """A sown variable ends up somewhere else than under its own type."""


def ledger(model: nnx.Module, filters: tuple[type, ...], *inputs) -> pd.DataFrame:
    """Runs one abstract forward and deals what it sowed to ``filters``, first match wins.

    Args:
      model: Any NNX model; unchanged.
      filters: The types that the code under test pops or splits by, in its order.
      *inputs: What ``model`` is called with.

    Returns:
      One row a sown variable, of this forward or left over from one before: its path,
      its type, ``taken_by`` (the first filter that matches, as nnx does it), ``belongs_to`` (the
      closest one), both "" for none, and ``fault``, "" if none.
    """
    before = {path for path, _ in nnx.to_flat_state(nnx.state(model))}

    def forward(model):
        model(*inputs)
        return model

    after = nnx.state(compat.eval_shape(forward, nnx.clone(model)))
    flat = nnx.to_flat_state(after)
    sown = [(p, type(v)) for p, v in flat if p not in before or _left_over(v, filters)]
    rows = [(dotted(path), kind, *_dealt(kind, filters)) for path, kind in sown]
    rows = [(p, k.__name__, _name(t), _name(b), _fault(k, t, b)) for p, k, t, b in rows]
    columns = ["path", "type", "taken_by", "belongs_to", "fault"]
    return pd.DataFrame(rows, columns=columns).sort_values("path", ignore_index=True)


def check(model: nnx.Module, filters: tuple[type, ...], *inputs) -> None:
    """Raises if a filter takes another type's variables or leaves some in the model.

    Raises:
      SownError: Names every such variable, its type, what took it and what to do; or nothing was
        sown, so nothing can be said.
    """
    found = ledger(model, filters, *inputs)
    if found.empty:
        raise SownError(
            "the forward sowed nothing: does the model sow at all, and in the mode and with the "
            "inputs that it was called with?"
        )
    faulty = found[found["fault"] != ""]
    if len(faulty):
        lines = [f"  {row.path} ({row.type}): {row.fault}" for row in faulty.itertuples()]
        raise SownError(
            "sown variables go astray:\n" + "\n".join(lines) + "\n"
            "nnx filters match by isinstance and the first match wins: give the most derived "
            "types first (nnxlab.model.sown.collect does), and pop every type that is sown."
        )


def _left_over(variable: nnx.Variable, filters: tuple[type, ...]) -> bool:
    """Whether it was sown before: a model that has run already holds what its forward sows."""
    if isinstance(variable, nnx.Param):
        return False
    return isinstance(variable, (nnx.Intermediate, *filters)) or isinstance(
        variable.get_value(), tuple
    )


def _dealt(kind: type, filters: tuple[type, ...]) -> tuple[type | None, type | None]:
    matching = [f for f in filters if issubclass(kind, f)]
    closest = max(matching, key=lambda f: len(f.__mro__), default=None)
    return (matching[0] if matching else None), closest


def _fault(kind: type, taken_by: type | None, belongs_to: type | None) -> str:
    if taken_by is None:
        return f"stays in the model; pop {kind.__name__} too"
    if taken_by is not belongs_to:
        return f"{taken_by.__name__} takes it before {belongs_to.__name__} is asked"
    return ""


def _name(kind: type | None) -> str:
    return "" if kind is None else kind.__name__
