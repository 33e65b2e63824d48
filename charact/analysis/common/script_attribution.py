"""Phase attribution of profiled programs and imported traces, and the code that ran in their `other` time."""

import math
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.record.reader import Run
from charact.record.schema import SAMPLED_PHASES

_FACTS = ["num_warmup_iterations", "num_iterations", "attributed_frac", "inferred_frac", "compile_s"]
_MUCH_FRAC = 0.1
_FRAMES = ["place", "function", "library", "num_samples"]


def is_watched(run: Run) -> bool:
    """Return whether the run profiled a user's program (`charact run`, `Profiler`), not a workload."""
    return "script" in run.manifest.get("options", {})


def is_imported(run: Run) -> bool:
    """Return whether the run was imported from traces (`charact import`)."""
    return "traces" in run.manifest.get("options", {})


@memoize
def attribution(run: Run) -> pd.DataFrame:
    """Return how much of each case's time was attributed to phases, for profiled programs and imported traces.

    Columns: case; num_warmup_iterations (left out); num_iterations (recorded); attributed_frac, the share of the
    iterations' time in phases other than `other`; inferred_frac, the share outside PyTorch calls that a rule assigned
    to a phase; compile_s, compile time of the whole program (null without compilation). Workloads have no rows.
    """
    timed = [(entry["case"], entry.get("passes", {}).get("timing", {})) for entry in _entries(run)]
    rows = [[case, *(timing.get(fact) for fact in _FACTS)] for case, timing in timed]
    return pd.DataFrame(rows, columns=["case", *_FACTS]).astype(dict.fromkeys(_FACTS, "float64") | {"case": "str"})


def blind_spots(run: Run) -> pd.DataFrame:
    """Return what could not be observed in a profiled program or a trace.

    Columns: case; blind_spot, a text with a remedy.
    """
    rows = [(entry["case"], spot) for entry in _entries(run)
            for spot in entry.get("passes", {}).get("timing", {}).get("blind_spots", [])]
    return pd.DataFrame(rows, columns=["case", "blind_spot"], dtype="str")


def dropped(run: Run) -> pd.DataFrame:
    """Return the items of each imported trace that are not in the record.

    Columns: case; pass; what, a plural noun; num_dropped; reason.
    """
    rows = [(entry["case"], name, one["what"], one["num_dropped"], one["reason"]) for entry in _entries(run)
            for name, facts in entry.get("passes", {}).items() for one in facts.get("dropped", [])]
    return pd.DataFrame(rows, columns=["case", "pass", "what", "num_dropped", "reason"])


def phase_evidence(run: Run) -> pd.DataFrame:
    """Return the evidence by which the phases of each trace were recognized.

    Columns: case; phase; evidence, as text.
    """
    rows = [(entry["case"], phase, "; ".join(evidence)) for entry in _entries(run)
            for phase, evidence in entry.get("passes", {}).get("timing", {}).get("evidence", {}).items()]
    return in_order(pd.DataFrame(rows, columns=["case", "phase", "evidence"], dtype="str"), run, "case", "phase")


def _entries(run: Run) -> list[dict[str, Any]]:
    return list(run.manifest["cases"]) if is_watched(run) or is_imported(run) else []


def has_unexplained_other(run: Run, case: str) -> bool:
    """Return whether over 10 % of a profiled program's time is `other` and no stack samples were recorded."""
    found = attribution(run)
    much = found.loc[found["case"] == case, "attributed_frac"] < 1 - _MUCH_FRAC
    sampled = {entry["case"] for entry in run.manifest["cases"]
               if "num_samples" in entry.get("passes", {}).get("frames", {})}
    return is_watched(run) and bool(much.any()) and case not in sampled


def sampled_share(row: Any) -> str:
    """Return the share of a row of `sampled_frames` as text, with half the width of its 95 % interval.

    *Source*: A. Agresti and B. A. Coull, Approximate is better than "exact" for interval estimation of binomial
    proportions, The American Statistician 52 (1998).
    """
    num_samples = row.num_samples / row.share_frac + 4
    middle = (row.num_samples + 2) / num_samples
    half = 1.96 * math.sqrt(middle * (1 - middle) / num_samples)
    return f"{100 * row.share_frac:.0f} ± {100 * half:.0f} %"


@memoize
def sampled_frames(run: Run, phase: str = "other") -> pd.DataFrame:
    """Return the lines of the program that were sampled in a phase, `other` or `data`, most samples first.

    Columns: case; place, file and line of the program's own code; function; library, the library function it was
    calling (null if the line itself was running); num_samples; share_frac of all the case's samples in the phase, also
    of lines that were not recorded; time_s, this share of the phase's mean time per iteration of the case.

    *Error*: a sample is taken every 100 ms, or every 10 ms with `--sample`. A share p of n samples has a standard error
    of at least sqrt(p (1 - p) / n).
    """
    num_samples, frames_name = SAMPLED_PHASES[phase]
    rows: list[dict[str, Any]] = []
    for entry in run.manifest["cases"]:
        sampled = entry.get("passes", {}).get("frames", {})
        rows += [{"case": entry["case"], **frame, "share_frac": frame["num_samples"] / sampled[num_samples]}
                 for frame in sampled.get(frames_name, [])]
    frames = pd.DataFrame(rows, columns=["case", *_FRAMES, "share_frac"])
    frames = frames.astype({"case": "str", "num_samples": "float64", "share_frac": "float64"})
    iterations = run.iterations
    phase_s = iterations[iterations["phase"] == phase].groupby("case")["host_s"].sum()
    phase_s = phase_s / iterations.groupby("case")["iteration"].nunique()
    frames["time_s"] = frames["share_frac"] * frames["case"].map(phase_s).astype("float64")
    return frames
