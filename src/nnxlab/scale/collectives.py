"""The collectives of a compiled program, read from its text.

Counted as they are written: one inside a loop over layers stands once, however often it runs, since
the TPU's compiler does not write down how often that is.
"""

import math
import re

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# "%name = f32[8,64]{1,0:T(8,128)} all-gather(", or "= (f32[8]{0}, f32[64]{0}) all-gather-start(".
_OPERATION = re.compile(rf"= (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
# The TPU's compiler writes a reduce-scatter as a fusion: an all-reduce, of which a slice is kept.
# "%all-reduce-scatter.6.clone.1 (input.16: f32[1280,64]) -> f32[1280,8] {"
_SCATTER = re.compile(r"%?all-reduce-scatter\S* \(.*-> (.+) \{$")
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def by_kind(text: str) -> dict[str, dict[str, int]]:
    """``count`` and ``bytes`` (of the results, on one chip) of each kind that occurs.

    Args:
      text: Optimized HLO, as ``Compiled.as_text()`` gives it.
    """
    found: dict[str, dict[str, int]] = {}
    scattered = None  # the result of the reduce-scatter whose computation the line is in
    for line in text.splitlines():
        if line.endswith("{"):
            header = _SCATTER.match(line)
            scattered = header and header[1]
        match = _OPERATION.search(line)
        if match:
            result, kind, start = match.groups()
            if scattered and kind == "all-reduce":
                result, kind = scattered, "reduce-scatter"
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
