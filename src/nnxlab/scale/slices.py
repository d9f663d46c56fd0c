"""How the bytes a chip fall with the number of chips, and the smallest slice that holds them."""

import math
from collections.abc import Sequence

import pandas as pd

from nnxlab.chips import Chip
from nnxlab.rules import MAXTEXT_RULES, Rules, ShardingError
from nnxlab.scale import price


def resized(
    weights: price.Weights,
    axes: dict[str, int],
    chips: int,
    *,
    dtype: str = "float32",
    rules: Rules = MAXTEXT_RULES,
) -> tuple[dict[str, int], pd.DataFrame] | None:
    """The mesh ``axes`` made as large as ``chips`` with its price, or None if none such fits.

    ``fsdp`` grows or shrinks (the first axis, if there is no fsdp) and the others stay. It cannot
    take every size: of DeepSeek-V3's 671 B, embed is 7168 = 2^10 * 7, q_lora 1536 = 2^9 * 3 and
    kv_lora 512 = 2^9, so fsdp ends at 512. What is beyond goes to ``tensor``, which shards other
    dimensions (mlp, heads, vocab). It cannot go to ``expert``: MaxText's rules put that axis on
    exp, but also beside fsdp on embed, q_lora and kv_lora, so 512 bounds the product of the two.

    Args:
      weights: Of any config.
      axes: Mesh axis sizes by name.
      chips: Product of the sizes wanted.
      dtype: As in ``price.price``.
      rules: As in ``price.price``.

    Returns:
      The axis sizes and ``price.price``'s table on them.
    """
    grows = "fsdp" if "fsdp" in axes else next(iter(axes))
    tensor = 1
    while True:
        tried = axes | ({"tensor": axes.get("tensor", 1) * tensor} if tensor > 1 else {})
        rest = math.prod(size for axis, size in tried.items() if axis != grows)
        if chips % rest or (tensor > 1 and grows == "tensor"):
            return None
        tried[grows] = chips // rest
        try:
            return tried, price.price(weights, tried, dtype=dtype, rules=rules)
        except ShardingError:
            tensor *= 2


def curve(
    weights: price.Weights,
    axes: dict[str, int],
    sizes: Sequence[int],
    *,
    dtype: str = "float32",
    rules: Rules = MAXTEXT_RULES,
) -> pd.DataFrame:
    """Bytes a chip (parameters, gradients, AdamW) over the number of chips.

    Args:
      weights: Of any config.
      axes: A mesh, ``resized`` to each size.
      sizes: Numbers of chips.
      dtype: As in ``price.price``.
      rules: As in ``price.price``.

    Returns:
      One row a size that some mesh fits: chips, mesh (axis sizes), fixed, broken.
    """
    made = []
    for chips in sizes:
        found = resized(weights, axes, chips, dtype=dtype, rules=rules)
        if found is None:
            continue
        mesh, table = found
        held = {
            state: price.bytes_per_chip(table, state)["total_bytes_per_chip"]
            for state in ("fixed", "broken")
        }
        made.append({"chips": chips, "mesh": mesh} | held)
    return pd.DataFrame(made, columns=["chips", "mesh", "fixed", "broken"])


def smallest(curve: pd.DataFrame, chip: Chip, state: str) -> dict | None:
    """The smallest slice whose chips hold parameters, gradients and AdamW; activations not counted.

    Args:
      curve: ``curve``'s, over the sizes of ``chip.slices`` at least.
      chip: A kind of TPU.
      state: ``"fixed"`` or ``"broken"``.

    Returns:
      ``{"chips": 128, "mesh": {"fsdp": 128}}``, or None if not even the largest holds them.
    """
    enough = curve[curve["chips"].isin(chip.slices) & (curve[state] <= chip.hbm_bytes)]
    if enough.empty:
        return None
    first = enough.loc[enough["chips"].idxmin()]
    return {"chips": int(first["chips"]), "mesh": first["mesh"]}
