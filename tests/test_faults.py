"""The mutation proof: each fault is put back into the sound code, and its check goes red.

A fault is a monkeypatch of one function; a check is one that the package itself makes (a case's
claims, a strict error, the comparison with MaxText). Every check passes without a fault.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import pytest
from flax import nnx

from nnxlab import audit, compat, parity, quantization, reference, sharding
from nnxlab.cases import mtp_loss, qwix_targets, scan_axis
from nnxlab.model import config, inputs, loss, nnx_model, ops, sown
from nnxlab.model import scan_axis as algebra
from nnxlab.training import MtpTerms, collect_all, mtp_term

SMALL = config.DEEPSEEK3_SMALL
MTP = SMALL.replace(mtp_num_layers=1)


def _passes(finding) -> None:
    assert finding.verdict == "PASS", finding.verdict


def check_scan_axis(mesh):
    _passes(scan_axis.run(SMALL, mesh))


def check_forward_keeps_names(mesh):
    model = nnx_model.abstract(MTP)
    audit.scan_metadata.check_forward(model, lambda m: m(*inputs.dummy(MTP)))


def check_inconsistent_metadata_raises(mesh):
    model = nnx_model.abstract(SMALL)
    kernel = dict(sharding.variables(model))["decoder.dense_layers.mlp.wi_0.kernel"]
    compat.set_logical_axes(kernel, ("embed", "x", "dense_layers", "mlp"))
    with pytest.raises(algebra.ScanAxisError):
        compat.eval_shape(lambda m: m(*inputs.dummy(SMALL)), model)


def check_qwix_targets(mesh):
    _passes(qwix_targets.run(SMALL))


def _model_after_a_forward():
    """A model that has seen three counted positions at depth 1, in two documents."""
    model, batch = nnx_model.create(MTP), inputs.synthetic(MTP, batch=1, length=4)
    # A new function each time: a cached trace would not see the fault.
    forward = nnx.jit(lambda model, batch: (model(*batch), None)[1])
    forward(model, batch._replace(target_mask=jnp.array([[1, 1, 2, 2]])))
    return model


def check_mtp_loss_is_the_mean_over_positions(mesh):
    model = _model_after_a_forward()
    sums = {name: getattr(model.mtp_block, name).get_value()[0] for name in ("losses", "weights")}
    assert float(sums["weights"]) == 3
    assert float(mtp_term(model)) == pytest.approx(0.1 * float(sums["losses"]) / 3, rel=1e-5)


def check_missing_collection_raises(mesh):
    with pytest.raises(sown.MissingCollectionError):
        mtp_term.loss({"mtp_losses": nnx.State({})}, MTP)


def check_collect_is_order_independent(mesh):
    collected = collect_all(_model_after_a_forward())
    sown.required(collected, "mtp_losses", "mtp_block", "losses")


def check_depths_are_pooled(mesh):
    value = loss.mtp_loss([jnp.array(10.0), jnp.array(1.0)], [jnp.array(5.0), jnp.array(1.0)], 1.0)
    assert float(value) == pytest.approx(11 / 6)


def check_maxtext(mesh):
    compared = parity.compare(parity.read(reference.SMALL_DUMP))
    assert compared["nnx"].max() <= parity.TOLERANCE


def check_metadata_key(mesh):
    assert len(sharding.table(nnx_model.abstract(SMALL), mesh)) == 32


class Fault(NamedTuple):
    name: str
    check: Callable
    where: object
    attribute: str
    fault: Callable


def _means(losses, weights, factor):
    return factor * sum(a / b for a, b in zip(losses, weights, strict=True)) / len(losses)


def _guarded_check(config, batch):
    return None


FAULTS = [
    Fault("hardcoded scan axis name", check_scan_axis, scan_axis, "FIXED", scan_axis.BROKEN),
    Fault(
        "hardcoded scan axis name in the model",
        check_forward_keeps_names,
        nnx_model.abstract,
        "__kwdefaults__",
        {"trip": scan_axis.BROKEN},
    ),
    Fault(
        "names made to fit",
        check_inconsistent_metadata_raises,
        nnx_model.abstract,
        "__kwdefaults__",
        {
            "trip": algebra.RoundTrip(
                algebra.recorded_axis, scan_axis.remove_or_trim, scan_axis.add_if_absent
            )
        },
    ),  # fmt: skip
    Fault(
        "scan axis one place off",
        check_forward_keeps_names,
        nnx_model.abstract,
        "__kwdefaults__",
        {
            "trip": algebra.RoundTrip(
                algebra.recorded_axis,
                algebra.remove,
                lambda names, axis, rank: algebra.add(names, algebra.ScanAxis(axis.name, 0), rank),
            )
        },
    ),  # fmt: skip
    Fault("old metadata key", check_metadata_key, compat, "SHARDING_KEYS", ("sharding_names",)),
    Fault(
        "generic pop first",
        check_collect_is_order_independent,
        sown,
        "most_derived_first",
        lambda types: types,
    ),  # fmt: skip
    Fault(
        "default of 0.0",
        check_missing_collection_raises,
        mtp_term.__class__,
        "loss",
        property(lambda self: mtp_loss.loss_or_zero),
    ),  # fmt: skip
    Fault(
        "broken MTP term",
        check_mtp_loss_is_the_mean_over_positions,
        MtpTerms,
        "__call__",
        lambda self, model: mtp_loss.loss_or_zero(mtp_loss.generic_first(model), model.config),
    ),  # fmt: skip
    Fault(
        "segment ids as weights",
        check_mtp_loss_is_the_mean_over_positions,
        loss,
        "loss_mask",
        lambda ids: ids.astype(jnp.float32),
    ),  # fmt: skip
    Fault("mean of means", check_depths_are_pooled, loss, "mtp_loss", _means),
    Fault(
        "targets forgotten",
        check_qwix_targets,
        inputs,
        "needed",
        lambda config: ("tokens", "positions", "segment_ids"),
    ),  # fmt: skip
    Fault("leftovers kept", check_qwix_targets, quantization, "restore", lambda *_: None),
    Fault("missing input not named", check_qwix_targets, inputs, "check", _guarded_check),
    Fault(
        "MTP rule forgotten", check_qwix_targets, quantization, "_LAYERS", r"decoder/.*layers/.*"
    ),  # fmt: skip
    Fault(
        "no YaRN temperature",
        check_maxtext,
        ops,
        "softmax_scale",
        lambda c: (c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5,
    ),  # fmt: skip
]


@pytest.mark.parametrize("check", sorted({f.check for f in FAULTS}, key=lambda c: c.__name__))
def test_every_check_passes_without_a_fault(check, mesh):
    check(mesh)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_check_goes_red_with_the_fault_put_back(fault, mesh, monkeypatch):
    monkeypatch.setattr(fault.where, fault.attribute, fault.fault)
    with pytest.raises((AssertionError, ValueError, LookupError, TypeError, pytest.fail.Exception)):
        fault.check(mesh)
