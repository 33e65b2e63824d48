"""The type of a finding: a cause of lost time or memory, its place, what it costs and its remedy."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Basis = Literal["measured share", "modelled", "bound"]
Confidence = Literal["high", "medium", "low"]
WEIGHTS: dict[Confidence, float] = {"high": 1.0, "medium": 0.8, "low": 0.3}
"""Factor of the recoverable share in the ranking, by confidence."""


class Place(NamedTuple):
    """A line of the program's own code."""

    file: str
    line: int
    text: str | None = None
    """The line's source code; None if it is not known."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def of(cls, facts: Any) -> "Place | None":
        """Return the place in recorded facts with file, line and perhaps text; None if it is not known."""
        return cls(facts.file, facts.line, getattr(facts, "text", None)) if facts.file else None


@dataclass(frozen=True)
class Saving:
    """Range of the time (s) that a remedy saves in the whole program, and how the range was obtained.

    `basis`: 'measured share' (the remedy removes the measured time of the cause), 'modelled' (estimated from other
    measurements), or 'bound' (at most this much).
    """

    low_s: float
    high_s: float
    basis: Basis = "measured share"


class FreedMemory(NamedTuple):
    """Memory in bytes, and as a share of the process's largest memory, at most 1."""

    num_bytes: float
    share_frac: float


@dataclass(frozen=True)
class Finding:
    """A cause, with its place, evidence, recoverable time and remedy.

    `cause` is one sentence without a full stop. `remedy` is in the imperative, with the code or option. `memory_bytes`
    is the memory that the remedy frees, for causes that cost memory. The remaining fields name the place; None where
    they do not apply.
    """

    cause: str
    remedy: str
    saving: Saving | None
    evidence: tuple[str, ...]
    confidence: Confidence = "high"
    memory_bytes: float | None = None
    memory_frac: float = 0.0
    """Share of the process's memory that the cause holds."""
    place: Place | None = None
    phase: str | None = None
    layer: str | None = None
    operator: str | None = None
    setting: str | None = None
    covers: frozenset[str] = frozenset()
    """IDs of findings that this one explains: they are not reported for the same case and phase."""
    explains_line: bool = False
    """Whether findings of what its line does are not reported."""

    def weight(self, program_s: float) -> float:
        """Return the weight of the finding in the ranking: the finding with the largest weight comes first."""
        recovered_frac = 0.0 if self.saving is None else (self.saving.low_s + self.saving.high_s) / 2 / program_s
        return max(recovered_frac, self.memory_frac / 2) * WEIGHTS[self.confidence]

    def facts(self, name: str, case: str, program_s: float) -> dict[str, Any]:
        """Return the finding as a row for tables and JSON."""
        saving = self.saving
        seconds = None if saving is None else [saving.low_s, saving.high_s]
        return {
            "finding": name, "case": case, "cause": self.cause,
            "file": self.place and self.place.file, "line": self.place and self.place.line,
            "text": self.place and self.place.text, "phase": self.phase, "layer": self.layer,
            "operator": self.operator, "setting": self.setting, "evidence": list(self.evidence),
            "recoverable_s": seconds,
            "recoverable_frac": None if seconds is None else [each / program_s for each in seconds],
            "recoverable_bytes": self.memory_bytes, "basis": None if saving is None else saving.basis,
            "remedy": self.remedy, "confidence": self.confidence,
        }  # fmt: skip
