from nnxlab.cases.finding import Claim, Finding


def _finding(broken, fixed):
    claims = [tuple(Claim(text, holds) for text, holds in side) for side in (broken, fixed)]
    return Finding("case", "b", "f", *claims, {})


def test_all_claims_hold():
    finding = _finding([("a", True)], [("b", True)])
    assert finding.reproduced and finding.verified and finding.verdict == "PASS"


def test_the_first_claim_that_fails_is_the_verdict():
    finding = _finding([("a", True), ("b", False)], [("c", False)])
    assert not finding.reproduced and not finding.verified
    assert finding.verdict == "FAIL: b"


def test_broken_and_fixed_are_judged_apart():
    finding = _finding([("a", True)], [("b", False)])
    assert finding.reproduced and not finding.verified and finding.verdict == "FAIL: b"
