"""Findings: causes of lost time and memory in a watched program, each with its place, cost and remedy.

Each public function of a file of this folder yields the findings of one kind about a case; its name is their ID.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase, watched_cases
from charact.analysis.profile.breakdown import operator_types
from charact.core.plugins import modules_in
from charact.record.manifest_program import OwnTime, ProgramFacts
from charact.record.reader import Run

__all__ = ["LargestPart", "findings", "has_findings", "largest_part", "program_time"]

_IF_SLOWED, _IF_DISTURBED = ("time_trend", "late_slow_down"), ("slow_iterations", "long_inputs")
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
        named = list(_of_case(case))
        for name, finding in named:
            # Another finding of the same phase, or of no phase, may explain this one.
            if not any((name in other.covers and other.phase in (None, finding.phase))
                       or (other.explains_line and name in _OF_LINES and other.place == finding.place is not None)
                       for _, other in named if other is not finding):
                ranked.append((finding.weight(case.program_s), finding.facts(name, case.name, case.program_s)))
    ranked.sort(key=lambda pair: -pair[0])
    return pd.DataFrame([facts for _, facts in ranked], columns=_COLUMNS)


def recoverable_in_all(rows: Sequence[Any]) -> tuple[list[float] | None, list[float]]:
    """Return recoverable_s and recoverable_frac of rows of `findings` of different cases together; None without any."""
    with_saving = [row for row in rows if row.recoverable_s is not None]
    seconds, shares = ([sum(ends) for ends in zip(*ranges, strict=True)] for ranges in (
        [row.recoverable_s for row in with_saving], [row.recoverable_frac for row in with_saving]))
    return seconds or None, shares


def has_findings(run: Run) -> bool:
    """Return whether the run watched a program and recorded what findings need."""
    return bool(watched_cases(run))


def _of_case(case: WatchedCase) -> Iterator[tuple[str, Finding]]:
    # Other programs lengthen some iterations and phases more than others.
    others = case.disturbance
    withheld = (*(_IF_SLOWED if others else ()), *(_IF_DISTURBED if others and others.is_unreliable else ()))
    for module in modules_in(__name__):
        for name, find in vars(module).items():
            if not inspect.isfunction(find) or name.startswith("_") or find.__module__ != module.__name__:
                continue
            for finding in find(case):
                is_negligible = finding.saving is None and not finding.memory_frac
                # The line with most samples of a phase does not explain why the phase grows.
                is_explained = finding.setting is not None or (finding.place is not None and name not in _IF_SLOWED)
                if not is_negligible and (is_explained or name not in withheld):
                    yield name, finding


class LargestPart(NamedTuple):
    """The longest phase of a case's typical iteration, and what takes most of this phase; None if not known."""

    case: str
    phase: str
    share_frac: float
    """Share of the iteration."""
    operator_type: str | None
    type_frac: float | None
    """Share of the phase under the profiler."""
    line: str | None
    line_frac: float | None
    """Share of the phase's samples."""


def largest_part(run: Run) -> LargestPart | None:
    """Return the largest part of the case with the longest total time; None if no iteration was timed."""
    cases = [case for case in watched_cases(run) if case.iteration_s > 0]
    if not cases:
        return None
    case = max(cases, key=lambda case: case.iteration_s * case.num_iterations)
    phase = max(case.phase_s, key=case.phase_s.__getitem__)
    types = operator_types(run)
    is_named = types["operator_type"] != "other"  # "other" says nothing about the operators
    longest = types[(types["case"] == case.name) & (types["phase"] == phase) & is_named].head(1)
    kind, type_frac = (None, None) if longest.empty else longest.iloc[0][["operator_type", "share_frac"]]
    line = next(iter(case.lines(phase)), None)
    return LargestPart(case.name, phase, case.phase_s[phase] / case.iteration_s, kind, type_frac,
                       None if line is None else str(line.place), None if line is None else line.share_frac)


_PARTS = {
    "compilation": "compilation", "garbage_collection": "garbage collection", "epoch_start": "first batches of epochs",
    "new_input_shapes": "new input shapes", "long_inputs": "long inputs", "periodic_work": "periodic work",
    "slow_iterations": "other slow iterations",
}  # fmt: skip


@memoize
def program_time(run: Run) -> pd.DataFrame:
    """Return the time of a watched program by part; the parts sum to its wall time.

    Columns: part; time_s; share_frac. Parts are 'start' (before the first iteration); 'training' and 'evaluation'
    (iterations without the extra time of slow ones; 'inference' in a program that does not train); the extra time of
    slow iterations: 'warm-up', 'periodic work' and others by reason; 'between iterations'; 'end' (after the last
    iteration); 'charact' (its passes and its start). A program that was not recorded to its end has no rows.

    *Error*: an iteration of a pass counts as long as a typical one; the rest of its time counts as charact's.
    """
    cases = watched_cases(run)
    program = cases[0].program if cases else ProgramFacts()
    if not program.duration_s:
        return pd.DataFrame({"part": [], "time_s": [], "share_frac": []})
    before_s, between_s, after_s = program.before_s or 0.0, program.between_s or 0.0, program.after_s or 0.0
    parts = {"start": before_s}
    for case in cases:
        for name, time_s in _iterations(case).items():
            parts[name] = parts.get(name, 0.0) + time_s
    named_s = sum(parts.values()) - before_s
    parts |= {"between iterations": between_s, "end": after_s}
    if not any(case.trains for case in cases):
        parts["inference"] = parts.pop("evaluation")
    main = "training" if "training" in parts else "inference"
    parts[main] += program.duration_s - before_s - between_s - after_s - named_s
    own_s = program.own_s or OwnTime()
    parts["charact"] = (own_s.start or 0.0) + (own_s.passes or 0.0)
    rows = pd.DataFrame({"part": list(parts), "time_s": list(parts.values())})
    rows = rows[rows["time_s"] > 0].reset_index(drop=True)
    return rows.assign(share_frac=rows["time_s"] / rows["time_s"].sum())


def _iterations(case: WatchedCase) -> dict[str, float]:
    """Return the time (s) of a case's iterations by part: the extra time of slow ones is in parts of its own."""
    extra = {_PARTS[reason]: group.extra_s for reason, group in case.slow_groups.items()}
    claimed = {index for group in case.slow_groups.values() for index in group.indices}
    warmup = case.iterations[case.iterations["kind"] == "warm-up"]
    unclaimed = warmup[~warmup.index.isin(claimed)]
    extra["warm-up"] = float((unclaimed["wall_s"] - case.typical_s).clip(lower=0.0).sum())
    whole_s = float(case.iterations["wall_s"].sum())
    timing = case.entry.passes.timing
    num_in_passes = case.num_iterations - len(case.iterations) - (timing.num_window_iterations or 0)
    whole_s += num_in_passes * case.typical_s + (timing.window_s or 0.0)
    return {"training" if case.trains else "evaluation": whole_s - sum(extra.values()), **extra}
