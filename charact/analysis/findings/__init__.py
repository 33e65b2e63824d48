"""Findings: causes of lost time and memory in a watched program, each with its place, cost and remedy.

Each file of a subfolder defines a function `find(case)`, which yields findings of one kind about a case; the file's
name is their ID.
"""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.findings._finding import Finding
from charact.analysis.findings._largest_part import LargestPart, largest_part
from charact.analysis.findings._program_time import program_time
from charact.analysis.findings._watched_case import WatchedCase, watched_cases
from charact.core.plugins import modules_below
from charact.record.reader import Run

__all__ = ["LargestPart", "findings", "has_findings", "largest_part", "program_time"]

_IF_SLOWED, _IF_DISTURBED = ("time_trend",), ("slow_iterations", "long_inputs")
"""Findings from times alone, which other programs on the machine can cause if no line or setting explains them: those
that are left out if times are too long, and if even the shares of phases may be wrong."""
_OF_LINES = ("line", "slow_iterations", "periodic_work")
"""Findings that name what a line does."""
_COLUMNS = ["finding", "case", "cause", "file", "line", "text", "phase", "layer", "operator", "setting", "evidence",
            "recoverable_s", "recoverable_frac", "recoverable_bytes", "basis", "remedy", "confidence"]


@memoize
def findings(run: Run) -> pd.DataFrame:
    """Return the findings about a watched program, ranked: the largest recoverable time first.

    Findings are ranked by the recoverable share of the program's time, times a factor for confidence. A finding about
    memory counts half of its share of the process's memory.

    Columns: finding, an ID such as 'data_loading'; case; cause, a sentence; place: file, line and its text, phase,
    layer, operator, setting (each null if it does not apply); evidence, a list of sentences; recoverable_s and
    recoverable_frac, [low, high] of the time that the remedy saves, without charact's own time, null if the cause costs
    memory only; recoverable_bytes; basis, how the range was obtained: 'measured share', 'modelled' or 'bound'; remedy;
    confidence: 'high', 'medium' or 'low'.

    *Error*: ranges are estimates, not confidence intervals. `benchmarks/findings.py` counts how often they contain the
    time that the remedy saved.
    """
    ranked: list[tuple[float, dict[str, Any]]] = []
    for case in watched_cases(run):
        ranked += [(finding.weight(case.program_s), finding.facts(name, case.name, case.program_s))
                   for name, finding in _uncovered(_of_case(case))]
    ranked.sort(key=lambda pair: -pair[0])
    return pd.DataFrame([facts for _, facts in ranked], columns=_COLUMNS)


def has_findings(run: Run) -> bool:
    """Return whether the run watched a program and recorded what findings need."""
    return bool(watched_cases(run))


def _of_case(case: WatchedCase) -> list[tuple[str, Finding]]:
    named = [(module.__name__.rpartition(".")[2], finding) for module in modules_below(__name__)
             for finding in module.find(case)]
    # Other programs lengthen some iterations and phases more than others.
    withheld = (_IF_SLOWED if case.is_slowed else ()) + (_IF_DISTURBED if case.is_disturbed else ())
    return [(name, finding) for name, finding in named
            if name not in withheld or finding.place is not None or finding.setting is not None]


def _uncovered(named: list[tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    """Return the findings that no other finding of the same phase, or of no phase, explains."""
    def is_covered(name: str, finding: Finding) -> bool:
        return any((name in other.covers and other.phase in (None, finding.phase))
                   or (other.explains_line and name in _OF_LINES and other.place == finding.place is not None)
                   for _, other in named if other is not finding)

    return [(name, finding) for name, finding in named if not is_covered(name, finding)]
