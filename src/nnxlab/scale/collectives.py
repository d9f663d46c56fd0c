"""The collectives of a compiled program, read from its text.

Counted as they are written: one inside a loop over layers stands once, however often it runs, since
the TPU's compiler does not write down how often that is.
"""

import math
import re

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# "%name = f32[8,64]{1,0:T(8,128)} all-gather(", or "= (f32[8]{0}, f32[64]{0}) all-gather-start(".
_OPERATION = re.compile(rf" = (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
# The TPU's compiler writes a reduce-scatter as a fusion: an all-reduce, of which a slice is kept.
# "%all-reduce-scatter.6.clone.1 (input.16: f32[1280,64]) -> f32[1280,8] {"
_SCATTER = re.compile(r"^%?all-reduce-scatter\S* \(.*-> (.+) \{$", re.M)
# For v5e it writes an asynchronous one where it starts, in each fusion that it runs beside, and
# where it is done. (Channel ids do not tell: separate copies of one operation share theirs.)
_GOES_ON = re.compile(r"^%?async_collective_fusion|\"AsyncCollectiveDone\"", re.M)
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def by_kind(text: str) -> dict[str, dict[str, int]]:
    """``count`` and ``bytes`` (of the results, on one chip) of each kind that occurs.

    Args:
      text: Optimized HLO, as ``Compiled.as_text()`` gives it.
    """
    found: dict[str, dict[str, int]] = {}
    for computation in text.split("\n}"):
        if _GOES_ON.search(computation):
            continue
        scatter = _SCATTER.search(computation)
        for result, kind, start in _OPERATION.findall(computation):
            if scatter and kind == "all-reduce":
                result, kind = scatter[1], "reduce-scatter"
            entry = found.setdefault(kind, {"count": 0, "bytes": 0})
            entry["count"] += 1
            entry["bytes"] += _bytes(result, carries_operands=bool(start) and kind != "all-reduce")
    return dict(sorted(found.items()))


def _bytes(result: str, carries_operands: bool) -> int:
    shapes = _SHAPE.findall(result)
    if carries_operands:  # (operands, results, contexts): what a -start hands to its -done
        shapes = [shape for shape in shapes if shape != ("u32", "")]
        shapes = shapes[len(shapes) // 2 :]
    return sum(_size(*shape) for shape in shapes)


def _size(dtype: str, dimensions: str) -> int:
    bits = 8 if dtype == "pred" else int(_BITS.search(dtype).group())
    return math.prod(int(size) for size in dimensions.split(",") if size) * bits // 8
