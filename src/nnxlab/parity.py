"""Our two implementations against MaxText's own numbers, from its weights and its batch."""

import dataclasses
import json
import zipfile
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from nnxlab.model import nnx_model, port
from nnxlab.model.config import DeepSeekConfig
from nnxlab.model.inputs import Batch
from nnxlab.training import Result, linen_loss_and_gradients, nnx_loss_and_gradients

TOLERANCE = 1e-4  # relative, float32

# Field of DeepSeekConfig by its name in MaxText's resolved config; the rest are named alike.
_RENAMED = {
    "num_heads": "num_query_heads",
    "num_shared_experts": "shared_experts",
    "norm_epsilon": "normalization_layer_epsilon",
    "rope_theta": "rope_max_timescale",
}
_OURS_ALONE = {"remat_policy", "dtype"}
# What the specimen has no other way of doing.
_FIXED = {
    "routed_score_func": "sigmoid",
    "routed_bias": True,
    "n_routing_groups": -1,
    "rope_type": "yarn",
    "rope_interleave": True,
    "rope_truncate": True,
    "rope_attention_scaling": False,
    "logits_via_embedding": False,
    "load_balance_loss_weight": 0.0,
    "final_logits_soft_cap": None,
    "attn_logits_soft_cap": None,
}
_INPUTS = {
    "tokens": "inputs",
    "positions": "inputs_position",
    "segment_ids": "inputs_segmentation",
    "targets": "targets",
    "target_mask": "targets_segmentation",
}


class DumpError(ValueError):
    """A dump of MaxText's numbers cannot be used; the message lists everything wrong with it."""


@dataclasses.dataclass(frozen=True)
class Dump:
    """Weights, batch and results of one forward and backward of MaxText.

    Attributes:
      config: The sizes, as our config.
      weights: By dotted path, float32; the layer axis at ``config.param_scan_axis``.
      batch: The batch.
      results: ``logits``, ``loss``, ``mtp_loss`` and ``gradnorm/<path>``.
    """

    config: DeepSeekConfig
    weights: dict[str, np.ndarray]
    batch: Batch
    results: dict[str, np.ndarray]


def read(path: str | Path) -> Dump:
    """Reads ``path`` (npz) and the resolved config in the JSON file beside it.

    Raises:
      DumpError: A file is missing, truncated, or lacks or doubles something; lists all of it.
    """
    path = Path(path)
    arrays, config = _arrays(path), _config(path.with_suffix(".json"))
    model = nnx_model.abstract(config)
    paths = port.shapes(model)
    names = [*(f"param/{p}" for p in paths), *(f"gradnorm/{p}" for p in paths)]
    names += [*(f"data/{name}" for name in _INPUTS.values()), "logits", "loss"]
    names += ["mtp_loss"] if config.mtp_num_layers else []
    faults = [f"{name}: missing" for name in names if name not in arrays]
    weighty = {name for name in arrays if name.startswith(("param/", "gradnorm/"))}
    faults += [f"{name}: left over" for name in sorted(weighty - set(names))]
    faults += [f"{k}: not finite" for k, v in arrays.items() if not np.isfinite(v).all()]
    weights = {p: arrays[f"param/{p}"] for p in paths if f"param/{p}" in arrays}
    faults += [
        f"param/{p}: shape {value.shape}, config asks for {paths[p]}"
        for p, value in weights.items()
        if value.shape != paths[p]
    ]
    if not faults:
        faults += _batch_faults(arrays, config)
    if faults:
        raise DumpError(f"{path}: {len(faults)} faults\n  " + "\n  ".join(faults))
    batch = Batch(**{ours: arrays[f"data/{theirs}"] for ours, theirs in _INPUTS.items()})
    results = {k: v for k, v in arrays.items() if not k.startswith(("param/", "data/"))}
    return Dump(config, weights, batch, results)


def compare(dump: Dump) -> pd.DataFrame:
    """Runs both implementations on ``dump``.

    Returns:
      One row a quantity: ``maxtext`` (a norm, for logits), then ``nnx`` and ``linen``, the
      relative differences: |a - b| / |b|, for logits of the whole array.
    """
    model = nnx_model.create(dump.config)
    port.load(model, dump.weights, dump.config.param_scan_axis)
    with jax.default_matmul_precision("highest"):
        nnx_result = nnx_loss_and_gradients(model, dump.batch)
        linen_result = linen_loss_and_gradients(dump.config, port.to_linen(model), dump.batch)
    ours = [_quantities(result) for result in (nnx_result, linen_result)]
    rows = []
    for name, reference in dump.results.items():
        if name not in ours[0]:
            continue
        size = float(np.linalg.norm(reference))
        rows.append((name, size, *(_relative(values[name], reference) for values in ours)))
    return pd.DataFrame(rows, columns=["quantity", "maxtext", "nnx", "linen"])


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DumpError(f"{path}: no such file; a dump is an npz with a json beside it") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise DumpError(f"{path}: not a readable npz, perhaps truncated: {error}") from error


def _config(path: Path) -> DeepSeekConfig:
    try:
        stored = json.loads(path.read_text())["config"]
    except FileNotFoundError:
        raise DumpError(f"{path}: no such file; it holds the dump's resolved config") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{path}: no JSON object with a 'config': {error!r}") from error
    wanted = {f.name: _RENAMED.get(f.name, f.name) for f in dataclasses.fields(DeepSeekConfig)}
    wanted = {ours: theirs for ours, theirs in wanted.items() if ours not in _OURS_ALONE}
    faults = [f"{theirs}: missing" for theirs in wanted.values() if theirs not in stored]
    faults += [
        f"{key}: {stored[key]!r}, the specimen has only {value!r}"
        for key, value in _FIXED.items()
        if stored.get(key, value) != value
    ]
    if faults:
        raise DumpError(f"{path}: the config cannot be used\n  " + "\n  ".join(faults))
    try:
        return DeepSeekConfig(**{ours: stored[theirs] for ours, theirs in wanted.items()})
    except ValueError as error:
        raise DumpError(f"{path}: {error}") from error


def _batch_faults(arrays: dict[str, np.ndarray], config: DeepSeekConfig) -> list[str]:
    shape = arrays["data/inputs"].shape
    faults = [
        f"data/{name}: shape {arrays[f'data/{name}'].shape}, inputs have {shape}"
        for name in _INPUTS.values()
        if arrays[f"data/{name}"].shape != shape
    ]
    for name in ("inputs", "targets"):
        tokens = arrays[f"data/{name}"]
        if tokens.min() < 0 or tokens.max() >= config.vocab_size:
            faults.append(f"data/{name}: tokens outside a vocabulary of {config.vocab_size}")
    if arrays["logits"].shape != (*shape, config.vocab_size):
        faults.append(f"logits: shape {arrays['logits'].shape}, not {(*shape, config.vocab_size)}")
    return faults


def _quantities(result: Result) -> dict[str, np.ndarray]:
    norms = {f"gradnorm/{path}": np.linalg.norm(g) for path, g in result.gradients.items()}
    named = {"logits": result.logits, "loss": result.loss, "mtp_loss": result.mtp_loss}
    return named | norms


def _relative(ours, reference) -> float:
    difference, size = np.linalg.norm(ours - reference), np.linalg.norm(reference)
    return float(difference / size) if size else float(difference)
