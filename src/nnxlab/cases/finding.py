"""What a case reports: claims that hold or do not, and the numbers they rest on."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement about the broken or the fixed code, checked on this machine in this run."""

    text: str
    holds: bool


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one case.

    Attributes:
      case: Its name on the command line.
      broken_shows: What the broken code did, in a few words with its figures.
      fixed_shows: What the fixed code did.
      broken: Claims about the broken code; all hold where the bug was reproduced.
      fixed: Claims about the fixed code; all hold where the fix was verified.
      evidence: The figures, ready for JSON.
    """

    case: str
    broken_shows: str
    fixed_shows: str
    broken: tuple[Claim, ...]
    fixed: tuple[Claim, ...]
    evidence: dict[str, Any]

    @property
    def reproduced(self) -> bool:
        """Whether every claim about the broken code holds."""
        return all(claim.holds for claim in self.broken)

    @property
    def verified(self) -> bool:
        """Whether every claim about the fixed code holds."""
        return all(claim.holds for claim in self.fixed)

    @property
    def verdict(self) -> str:
        """``PASS``, or ``FAIL`` with the first claim that does not hold."""
        for claim in (*self.broken, *self.fixed):
            if not claim.holds:
                return f"FAIL: {claim.text}"
        return "PASS"
