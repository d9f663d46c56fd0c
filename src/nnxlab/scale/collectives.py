"""The collectives of a compiled program, read from its text.

Counted as they are written: one inside a loop over layers stands once, however often it runs, since
not every backend writes down how often that is.
"""

import math
import re

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# "%name = f32[8,64]{1,0:T(8,128)} all-gather(", or "= (f32[8]{0}, f32[64]{0}) all-gather-start(".
_OPERATION = re.compile(rf"= (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def by_kind(text: str) -> dict[str, dict[str, int]]:
    """``count`` and ``bytes`` (of the results, on one chip) of each kind that occurs.

    Args:
      text: Optimized HLO, as ``Compiled.as_text()`` gives it.
    """
    found: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        match = _OPERATION.search(line)
        if match:
            result, kind, start = match.groups()
            entry = found.setdefault(kind, {"count": 0, "bytes": 0})
            entry["count"] += 1
            entry["bytes"] += _bytes(result, is_start=bool(start))
    return dict(sorted(found.items()))


def _bytes(result: str, is_start: bool) -> int:
    sizes = [_size(*shape) for shape in _SHAPE.findall(result)]
    if is_start and result.startswith("("):
        return sizes[1]  # (operand, result, ...): what a -start carries to its -done
    return sum(sizes)


def _size(dtype: str, dimensions: str) -> int:
    bits = 8 if dtype == "pred" else int(_BITS.search(dtype).group())
    return math.prod(int(size) for size in dimensions.split(",") if size) * bits // 8
