"""Bug 3: one forward moves the logical axis names of every stacked weight.

MaxText's helpers took the scan axis' name to be "layers" (ef34fac90, mended in a8427ccb7 of PR
#4525), while DeepSeek's stacks are named ``dense_layers`` and ``moe_layers``. The name was not
found, so the *first* name was dropped to make the list fit, and "layers" was put in beside the
real one: ('embed', 'dense_layers', 'mlp') became ('dense_layers', 'layers', 'mlp').
"""

import pandas as pd
import qwix
from flax import nnx

from nnxlab import compat, sharding
from nnxlab.cases.finding import Claim, Finding
from nnxlab.compat import Names
from nnxlab.model import inputs, stack
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.nnx_layers import Layer
from nnxlab.model.nnx_model import DeepSeek
from nnxlab.model.scan_axis import (
    POSITION_KEY,
    RECORDED,
    RoundTrip,
    ScanAxis,
    to_layer,
    to_stack,
)
from nnxlab.quantization import fp8_full
from nnxlab.rules import MAXTEXT_RULES, Rules
from nnxlab.training import mtp_term

NAME = "scan-axis"
TOLERANCE = 0.02  # MaxText's sharding_tolerance


def hardcoded_axis(variable: nnx.Variable) -> ScanAxis:
    """The fault: the name is a literal, whatever the variable records."""
    return ScanAxis("layers", variable.get_metadata()[POSITION_KEY])


def remove_or_trim(names: Names, axis: ScanAxis, layer_rank: int) -> Names:
    """The fault's accomplice: names that do not fit are cut from the left until they do."""
    names = list(names)
    if axis.name in names:
        names.remove(axis.name)
    while len(names) > layer_rank:
        names.pop(0)
    return tuple(names)


def add_if_absent(names: Names, axis: ScanAxis, layer_rank: int) -> Names:
    """The way back: pads with None, then inserts the name unless it is there."""
    names = list(names)
    if axis.name not in names:
        names += [None] * (layer_rank - len(names))
        names.insert(axis.position, axis.name)
    return tuple(names)


BROKEN = RoundTrip(axis_of=hardcoded_axis, remove=remove_or_trim, add=add_if_absent)
FIXED = RECORDED


def model_after(config: DeepSeekConfig, trip: RoundTrip, forwards: int) -> DeepSeek:
    """An abstract model that has run ``forwards`` forwards; no array is allocated."""
    model = compat.eval_shape(lambda: DeepSeek(config, rngs=nnx.Rngs(0), trip=trip))
    for _ in range(forwards):
        model = after_forward(model)
    return model


def after_forward(model: DeepSeek) -> DeepSeek:
    """The abstract ``model`` after one more forward; the one given stays as it is."""

    def run(model):
        model(*inputs.dummy(model.config))
        mtp_term(model)
        return model

    return compat.eval_shape(run, model)


def quantized_in_construction(config: DeepSeekConfig, trip: RoundTrip) -> DeepSeek:
    """An abstract model that was quantized while it was built, as MaxText does it.

    Quantizing runs a forward, so the snapshot of the shardings, which is taken of what the
    constructor returns, comes after the first forward and not before it.
    """

    def build_and_quantize():
        model = DeepSeek(config, rngs=nnx.Rngs(0), trip=trip)
        return qwix.quantize_model(model, fp8_full(), *inputs.dummy(config))

    return compat.eval_shape(build_and_quantize)


def before_and_after(
    config: DeepSeekConfig, mesh, trip: RoundTrip, rules: Rules = MAXTEXT_RULES
) -> pd.DataFrame:
    """The sharding table of a model with the columns ``names_after`` and ``spec_after``.

    Args:
      config: Any config; MTP and quantization have no part in this bug.
      mesh: The mesh to resolve the names on.
      trip: ``BROKEN`` or ``FIXED``.
      rules: What the names stand for.
    """
    model = model_after(config, trip, 0)
    before = sharding.table(model, mesh, rules)
    after = sharding.table(after_forward(model), mesh, rules)
    for column in ("names", "spec", "shard", "bytes_per_device"):
        before[f"{column}_after"] = after[column]
    return before


def check_after(table: pd.DataFrame) -> dict[str, float]:
    """``sharding.unsharded`` of the state after the forward."""
    return sharding.unsharded(table.assign(shard=table["shard_after"]))


def steps(names: Names, recorded: ScanAxis) -> pd.DataFrame:
    """The list operations of one round trip, broken and fixed, a row each."""
    rank, literal = len(names) - 1, ScanAxis("layers", recorded.position)
    rows = [("declared", names, names)]
    broken, fixed = remove_or_trim(names, literal, rank), FIXED.remove(names, recorded, rank)
    rows.append(("one layer, inside the scan", broken, fixed))
    broken, fixed = add_if_absent(broken, literal, rank), FIXED.add(fixed, recorded, rank)
    rows.append(("the stack again, after it", broken, fixed))
    return pd.DataFrame(rows, columns=["step", "broken", "fixed"])


def immune_stack(config: DeepSeekConfig, name: str) -> bool:
    """Whether a stack whose layer axis is called ``name`` survives the broken round trip."""
    layers = compat.eval_shape(
        lambda: stack.create(
            lambda rngs: Layer(config, moe=False, rngs=rngs), 2, name, 1, nnx.Rngs(0)
        )
    )
    state = nnx.state(layers, nnx.Param)
    back = to_stack(to_layer(state, BROKEN), BROKEN)
    names = [v.get_metadata()["out_sharding"] for _, v in nnx.to_flat_state(state)]
    return names == [v.get_metadata()["out_sharding"] for _, v in nnx.to_flat_state(back)]


def run(config: DeepSeekConfig, mesh) -> Finding:
    """Reproduces and verifies, abstractly; the time does not depend on the number of layers."""
    config = config.replace(mtp_num_layers=0)
    broken = before_and_after(config, mesh, BROKEN)
    fixed = before_and_after(config, mesh, FIXED)
    start, bad, good = sharding.unsharded(broken), check_after(broken), check_after(fixed)
    quantized = sharding.table(quantized_in_construction(config, BROKEN), mesh)
    fatal = sharding.unsharded(quantized)["maxtext_share"]
    stacked = int(broken["path"].str.contains("_layers.").sum())
    evidence = {
        "variables": len(broken),
        "broken_changed": _changed(broken, "names"),
        "fixed_changed": _changed(fixed, "names"),
        "broken_spec_changed": _changed(broken, "spec"),
        "fixed_spec_changed": _changed(fixed, "spec"),
        "unsharded_tensors_before": start["tensors"],
        "unsharded_tensors_broken": bad["tensors"],
        "unsharded_elements_before": start["elements"],
        "unsharded_elements_broken": bad["elements"],
        "unsharded_elements_fixed": good["elements"],
        "total_elements": start["total_elements"],
        "share_broken": bad["share"],
        "maxtext_share_before": start["maxtext_share"],
        "maxtext_share_broken": bad["maxtext_share"],
        "maxtext_share_quantized_in_construction": fatal,
    }
    return Finding(
        case=NAME,
        broken_shows=f"{evidence['broken_changed']} of {len(broken)} variables renamed, "
        f"{start['share']:.2%} -> {bad['share']:.2%} of elements replicated",
        fixed_shows=f"{evidence['fixed_changed']} renamed, {good['share']:.2%} replicated",
        broken=(
            Claim("every stacked variable is renamed", evidence["broken_changed"] == stacked > 0),
            Claim("specs change", evidence["broken_spec_changed"] > 0),
            Claim("more elements are replicated", bad["elements"] > start["elements"]),
            Claim("a snapshot before the first step hides it", start["share"] <= TOLERANCE),
            Claim("quantizing in the constructor shows it", fatal > TOLERANCE),
            Claim("a stack named 'layers' is immune", immune_stack(config, "layers")),
            Claim("a stack of another name is not", not immune_stack(config, "dense_layers")),
        ),
        fixed=(
            Claim("no variable is renamed", evidence["fixed_changed"] == 0),
            Claim("no spec changes", evidence["fixed_spec_changed"] == 0),
            Claim("as much is replicated as before", good["elements"] == start["elements"]),
        ),
        evidence=evidence,
    )


def _changed(table: pd.DataFrame, column: str) -> int:
    return int((table[column] != table[f"{column}_after"]).sum())
