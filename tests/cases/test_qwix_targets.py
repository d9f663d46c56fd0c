import pytest

from nnxlab.cases import qwix_targets
from nnxlab.model import config, inputs, nnx_model
from nnxlab.model.inputs import MissingInputError
from nnxlab.quantization import PROVIDERS, maxtext_fp8_full

each = pytest.mark.parametrize("make", PROVIDERS.values(), ids=PROVIDERS)


@pytest.fixture(scope="module")
def abstract(sizes):
    return nnx_model.abstract(sizes)


@each
def test_the_exact_error_of_maxtext(abstract, make):
    with pytest.raises(TypeError) as caught:
        qwix_targets.broken(abstract, make())
    assert f"TypeError: {caught.value}".startswith(qwix_targets.EXPECTED_ERROR)


@each
def test_no_mtp_layers_and_linen_are_unaffected(sizes, make):
    plain = nnx_model.abstract(config.DEEPSEEK3_SMALL)
    assert not qwix_targets.error_of(qwix_targets.broken, plain, make())
    assert not qwix_targets.linen_error(sizes, make())


def test_the_call_goes_through_the_whole_model(abstract):
    path = qwix_targets.call_path(qwix_targets.broken, abstract, PROVIDERS["int8"]())
    assert path == ["broken", "DeepSeek.__call__", "MtpBlock.__call__", "roll_left"]
    assert qwix_targets.call_path(lambda: None) == []


@each
def test_a_missing_input_is_named_before_anything_is_traced(abstract, sizes, make, monkeypatch):
    monkeypatch.setattr("qwix.quantize_model", lambda *_, **__: pytest.fail("traced"))
    lacking = inputs.dummy(sizes)._replace(targets=None, target_mask=None)
    with pytest.raises(MissingInputError, match="needs targets, target_mask"):
        qwix_targets.fixed(abstract, make(), lacking)


@each
def test_a_guard_hides_the_crash_and_quantizes_no_mtp_module(sizes, make):
    # F9
    provider = make()
    qwix_targets.broken(qwix_targets.abstract_guarded(sizes), provider)
    assert provider.quantized and not qwix_targets.mtp_modules(provider)


def test_maxtexts_own_rule_reaches_no_mtp_module(abstract):
    provider = maxtext_fp8_full()
    qwix_targets.fixed_as_in_pr(abstract, provider)
    assert provider.quantized and not qwix_targets.mtp_modules(provider)


def test_the_verdict_passes():
    finding = qwix_targets.run(config.DEEPSEEK3_SMALL)
    assert finding.verdict == "PASS"
    assert finding.evidence["leftovers"] == finding.evidence["unused_rules"] == 0
    assert finding.evidence["mtp_modules_quantized"] > 0
    assert finding.evidence["broken_error"] == qwix_targets.EXPECTED_ERROR
