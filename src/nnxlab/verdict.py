"""The three cases run in order and told as one table."""

from collections.abc import Callable, Iterator

import jax
import pandas as pd

from nnxlab import devices
from nnxlab.cases import mtp_loss, qwix_targets, scan_axis
from nnxlab.cases.finding import Finding
from nnxlab.model.config import DeepSeekConfig, config_named

MESH = {"fsdp": 8}
CONFIGS = ("tiny", "small")

CASES: dict[str, Callable[[DeepSeekConfig], Finding]] = {
    mtp_loss.NAME: mtp_loss.run,
    qwix_targets.NAME: qwix_targets.run,
    scan_axis.NAME: lambda config: scan_axis.run(config, devices.mesh(MESH)),
}


def verify(cases: list[str] | None = None, config: str = "tiny") -> Iterator[Finding]:
    """Runs ``cases``, all if not given, and yields each finding as soon as it is there.

    Raises:
      ValueError: An unknown case or config, before anything runs; names those there are.
      TooFewDevicesError: A case needs a mesh that jax can no longer provide.
    """
    if config not in CONFIGS:
        raise ValueError(f"unknown config {config!r} to verify with; known: {', '.join(CONFIGS)}")
    chosen, sizes = list(CASES) if cases is None else list(cases), config_named(config)
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        raise ValueError(f"unknown case {', '.join(map(repr, unknown))}; known: {', '.join(CASES)}")
    devices.mesh(MESH)  # asked for first: once a case has run, jax takes no more devices
    return (CASES[name](sizes) for name in chosen)


def table(findings: list[Finding]) -> pd.DataFrame:
    """One row a case: what the broken code shows, what the fixed code shows, the verdict."""
    rows = [(f.case, f.broken_shows, f.fixed_shows, f.verdict) for f in findings]
    return pd.DataFrame(rows, columns=["case", "broken shows", "fixed shows", "verdict"])


def report(findings: list[Finding]) -> dict:
    """The same for machines, with every figure the verdicts rest on.

    Keys: platform, devices, cases: a list of case, reproduced, fixed, claims, evidence.
    """
    return {
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "cases": [
            {
                "case": finding.case,
                "reproduced": finding.reproduced,
                "fixed": finding.verified,
                "claims": {c.text: c.holds for c in (*finding.broken, *finding.fixed)},
                "evidence": finding.evidence,
            }
            for finding in findings
        ],
    }


def all_hold(findings: list[Finding]) -> bool:
    """Whether every claim of every finding holds, and there is at least one."""
    return bool(findings) and all(f.reproduced and f.verified for f in findings)
