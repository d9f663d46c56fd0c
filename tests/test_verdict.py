import pytest

from nnxlab import verdict
from nnxlab.cases.finding import Claim, Finding


def _finding(broken=True, fixed=True):
    return Finding("case", "b", "f", (Claim("is broken", broken),), (Claim("is fixed", fixed),), {})


def test_unknown_cases_are_named_before_anything_runs():
    with pytest.raises(ValueError, match="unknown case 'a', 'b'; known: mtp-loss"):
        verdict.verify(["a", "scan-axis", "b"])


@pytest.mark.parametrize("name", ["huge", "deepseek3-671b", ""])
def test_a_config_too_large_or_unknown_is_refused(name):
    with pytest.raises(ValueError, match="known: tiny, small"):
        verdict.verify(config=name)


def test_findings_come_one_by_one():
    findings = verdict.verify(["scan-axis"], "small")
    assert next(findings).case == "scan-axis"
    assert next(findings, None) is None


@pytest.mark.parametrize(("broken", "fixed"), [(False, True), (True, False)])
def test_one_claim_that_does_not_hold_fails_the_verdict(broken, fixed):
    assert not verdict.all_hold([_finding(), _finding(broken, fixed)])


def test_no_findings_are_no_success():
    assert not verdict.all_hold([])
    assert verdict.all_hold([_finding()])


def test_report_has_the_promised_keys():
    report = verdict.report(list(verdict.verify(["scan-axis"], "small")))
    assert set(report) == {"platform", "devices", "cases"}
    (case,) = report["cases"]
    assert case["case"] == "scan-axis" and case["reproduced"] and case["fixed"]
    assert {
        "variables",
        "broken_changed",
        "fixed_changed",
        "broken_spec_changed",
        "fixed_spec_changed",
        "unsharded_elements_before",
        "unsharded_elements_broken",
        "unsharded_elements_fixed",
        "total_elements",
        "maxtext_share_broken",
    } <= set(case["evidence"])


def test_table_has_a_row_a_case_with_its_verdict():
    table = verdict.table([_finding(), _finding(fixed=False)])
    assert table["verdict"].tolist() == ["PASS", "FAIL: is fixed"]
