"""Phase attribution of profiled programs and imported traces, and the lines of code that took the time."""

import math
from collections import defaultdict
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import Frame
from charact.record.manifest_program import OutOfMemory
from charact.record.reader import Run
from charact.record.schema import SAMPLED_PHASES

_FACTS = ["num_warmup_iterations", "num_pass_iterations", "num_iterations", "num_window_iterations", "attributed_frac",
          "inferred_frac", "compile_s"]
_OUTSIDE = ["duration_s", "before_s", "between_s", "after_s"]
_MUCH_FRAC = 0.1
_NUM_LIBRARIES = 3
"""Maximum number of library functions that are named for a line."""
_MOST_LINES = 3
"""Number of lines of a function that are named one by one."""
_SPARSE_S = 0.05
"""Minimum interval of samples (s) that shows that the sampler ran without `--sample`."""
_NORMAL = 1.96
"""Quantile of the normal distribution for a 95 % interval."""


def is_watched(run: Run) -> bool:
    """Return whether the run profiled a user's program (`charact run`, `Profiler`), not a workload."""
    return "script" in run.manifest.get("options", {})


def is_imported(run: Run) -> bool:
    """Return whether the run was imported from traces (`charact import`)."""
    return "traces" in run.manifest.get("options", {})


@memoize
def attribution(run: Run) -> pd.DataFrame:
    """Return how much of each case's time was attributed to phases, for profiled programs and imported traces.

    Columns: case; num_warmup_iterations (left out); num_pass_iterations, measured by other passes than the timing (null
    in older records); num_iterations (recorded); num_window_iterations, those after them that only windows of time have
    (null if there are none); attributed_frac, the share of the iterations' time in phases other
    than `other`; inferred_frac, the share outside PyTorch calls that a rule assigned to a phase; compile_s, compile
    time of the whole program (null without compilation). Workloads have no rows.
    """
    rows = [[entry.case, *(getattr(entry.passes.timing, fact) for fact in _FACTS)] for entry in _entries(run)]
    return pd.DataFrame(rows, columns=["case", *_FACTS]).astype(dict.fromkeys(_FACTS, "float64") | {"case": "str"})


def memory_ran_out(run: Run, case: str | None = None) -> list[OutOfMemory]:
    """Return where a profiled program ran out of memory, which its first case has; nothing if it did not."""
    programs = [entry.passes.timing.program for entry in _entries(run) if case in (None, entry.case)]
    return [program.out_of_memory for program in programs if program is not None and program.out_of_memory is not None]


def time_outside(run: Run) -> pd.DataFrame:
    """Return how long each profiled program ran outside of its iterations, such as for imports or evaluation.

    Columns: case, the program's first case; duration_s, the time of the whole program, without charact's passes;
    outside_s, its time outside of iterations; outside_frac, their ratio (0 to 1); before_s, until the first iteration;
    between_s, between iterations; after_s, from the last one. outside_s is the sum of the last three. own_s, charact's
    own time to start and in its passes, is in none of them; null if it was not recorded. A program that was not
    recorded to its end has no row.
    """
    programs = [(entry.case, entry.passes.timing.program) for entry in _entries(run)]
    rows = [[case, *(getattr(program, name) for name in _OUTSIDE), program.own_s and (
                (program.own_s.start or 0.0) + (program.own_s.passes or 0.0))]
            for case, program in programs if program is not None and program.duration_s]
    columns = [*_OUTSIDE, "own_s"]
    times = pd.DataFrame(rows, columns=["case", *columns]).astype({"case": "str"} | dict.fromkeys(columns, "float64"))
    times["outside_s"] = times["before_s"] + times["between_s"] + times["after_s"]
    return times.assign(outside_frac=times["outside_s"] / times["duration_s"])


def blind_spots(run: Run) -> pd.DataFrame:
    """Return what could not be observed in a profiled program or a trace.

    Columns: case; blind_spot, a text with a remedy.
    """
    rows = [(entry.case, spot) for entry in _entries(run) for spot in entry.passes.timing.blind_spots]
    return pd.DataFrame(rows, columns=["case", "blind_spot"], dtype="str")


def dropped(run: Run) -> pd.DataFrame:
    """Return the items of each imported trace or memory snapshot that are not in the record.

    Columns: case; pass; what, a plural noun; num_dropped; reason.
    """
    rows = [(entry.case, name, items.what, items.num_dropped, items.reason) for entry in run.entries
            for name, facts in entry.passes.items() for items in facts.dropped]
    return pd.DataFrame(rows, columns=["case", "pass", "what", "num_dropped", "reason"])


def phase_evidence(run: Run) -> pd.DataFrame:
    """Return the evidence by which the phases of each trace were recognized.

    Columns: case; phase; evidence, as text.
    """
    rows = [(entry.case, phase, "; ".join(evidence)) for entry in _entries(run)
            for phase, evidence in entry.passes.timing.evidence.items()]
    return in_order(pd.DataFrame(rows, columns=["case", "phase", "evidence"], dtype="str"), run, "case", "phase")


def _entries(run: Run) -> list[CaseEntry]:
    return run.entries if is_watched(run) or is_imported(run) else []


def has_unexplained_other(run: Run, case: str) -> bool:
    """Return whether over 10 % of a profiled program's time is `other` and no stack samples were recorded."""
    entry = run.entry(case)
    attributed_frac = entry.passes.timing.attributed_frac
    return (is_watched(run) and attributed_frac is not None and attributed_frac < 1 - _MUCH_FRAC
            and "frames" not in entry.passes)


def is_sparse(run: Run, case: str) -> bool:
    """Return whether the lines of a case were sampled without `--sample`."""
    return (run.entry(case).passes.frames.interval_s or 0.0) >= _SPARSE_S


def sample_delay_s(run: Run) -> float | None:
    """Return the median time by which samples were late (seconds), of the case with the longest; None if unknown."""
    return max((entry.passes.frames.delay_s for entry in _entries(run) if entry.passes.frames.delay_s is not None),
               default=None)


def too_few_samples(run: Run, case: str) -> dict[str, int]:
    """Return the phases of a case with too few samples to name lines, with their number; none with `--sample`."""
    sampled, sparse = run.entry(case).passes.frames, is_sparse(run, case)
    return {phase: getattr(sampled, num_samples) for phase, (num_samples, frames) in SAMPLED_PHASES.items()
            if sparse and getattr(sampled, num_samples) and not getattr(sampled, frames)}


def sampled_share(row: Any) -> str:
    """Return the share of a row of `sampled_frames` as text, with its 95 % interval: 43 % (16–75 %).

    *Source*: E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of the
    American Statistical Association 22 (1927).
    """
    share, spread = row.share_frac, _NORMAL**2 * row.share_frac / row.num_samples  # z²/n
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    return f"{100 * share:.0f} % ({100 * low:.0f}–{100 * high:.0f} %)"


@memoize
def sampled_frames(run: Run, phase: str = "other") -> pd.DataFrame:
    """Return the lines of the program that were sampled in a phase, most samples first; none outside `SAMPLED_PHASES`.

    Columns: case; place, file and line of the program's own code; function; library, the library functions it was
    calling (null if only the line itself was running); num_samples; share_frac of all the case's samples in the phase,
    also of lines that were not recorded; time_s, this share of the phase's mean time per iteration of the case (null
    for `outside`).

    *Error*: a sample is taken every 100 ms, or every 10 ms with `--sample`. A share p of n samples has a standard error
    of at least sqrt(p (1 - p) / n). A call that releases the GIL, such as one of PyTorch's, has samples of up to
    `sample_delay_s` before it, too.
    """
    rows: list[list[Any]] = []
    for entry in run.entries if phase in SAMPLED_PHASES else ():
        num_all, frames = (getattr(entry.passes.frames, name) for name in SAMPLED_PHASES[phase])
        by_line: dict[tuple[str, str], list[Frame]] = defaultdict(list)
        for frame in frames:
            by_line[frame.place, frame.function].append(frame)
        for (place, function), of_line in by_line.items():
            libraries = [frame.library for frame in of_line if frame.library is not None]
            num_samples = sum(frame.num_samples for frame in of_line)
            rows.append([entry.case, place, function, ", ".join(libraries[:_NUM_LIBRARIES]) or None, num_samples,
                         num_samples / num_all])
    lines = pd.DataFrame(rows, columns=["case", "place", "function", "library", "num_samples", "share_frac"])
    lines = _most_first(lines.astype({"case": "str", "num_samples": "float64", "share_frac": "float64"}), run)
    iterations = run.iterations
    phase_s = iterations[iterations["phase"] == phase].groupby("case")["host_s"].sum()
    phase_s = phase_s / iterations.groupby("case")["iteration"].nunique()
    return lines.assign(time_s=lines["share_frac"] * lines["case"].map(phase_s).astype("float64"))


def _most_first(lines: pd.DataFrame, run: Run) -> pd.DataFrame:
    return in_order(lines.sort_values("num_samples", ascending=False, kind="stable"), run, "case")


@memoize
def sampled_functions(run: Run, phase: str) -> pd.DataFrame:
    """Return the rows of `sampled_frames`, in which the lines of one function are one row.

    A line that calls a library keeps a row of its own: its time is in the library.

    Columns: as in `sampled_frames`; place has up to three lines (train.py:39, 40), or the first and the last of more
    (train.py:36–41).
    """
    lines = sampled_frames(run, phase)
    file = lines["place"].map(lambda place: place.rpartition(":")[0])
    own_row = lines["library"].notna() * (lines.index + 1)
    rows = []
    for (case, function, *_), group in lines.groupby(["case", "function", file, own_row], sort=False):
        places = sorted((place.rpartition(":")[2] for place in group["place"]), key=lambda line: (len(line), line))
        text = ", ".join(places) if len(places) <= _MOST_LINES else f"{places[0]}–{places[-1]}"
        rows.append([case, f"{group['place'].iloc[0].rpartition(':')[0]}:{text}", function, group["library"].iloc[0],
                     group["num_samples"].sum(), group["share_frac"].sum(), group["time_s"].sum(min_count=1)])
    return _most_first(pd.DataFrame(rows, columns=lines.columns).astype(lines.dtypes), run)
