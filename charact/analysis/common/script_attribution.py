"""What the record of a watched program, or of a trace, says of itself: how phases were found, what `other` was."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import once
from charact.analysis.common.row_order import in_order
from charact.record.reader import Run

_FACTS = ["num_warmup_iterations", "num_iterations", "attributed_frac", "inferred_frac", "compile_s"]
_MUCH_FRAC = 0.1
_FRAMES = ["place", "function", "library", "num_samples"]


def is_watched(run: Run) -> bool:
    """Whether the run is of a program that was watched (`charact run`, `Profiler`), not of a workload."""
    return "script" in run.manifest.get("options", {})


def is_imported(run: Run) -> bool:
    """Whether the run was made of traces (`charact import`)."""
    return "traces" in run.manifest.get("options", {})


@once
def attribution(run: Run) -> pd.DataFrame:
    """How the phases of each case of a watched program or a trace were found; a run of workloads has no rows.

    Columns: case; num_warmup_iterations, those left out, and num_iterations, those recorded; attributed_frac, the part
    of all iterations' time that lies in a phase other than `other`; inferred_frac, the part that no call into PyTorch
    covers and that a rule gave to a phase; compile_s, what compiling took over the whole program (null where nothing
    was compiled).
    """
    timed = [(entry["case"], entry.get("passes", {}).get("timing", {})) for entry in _entries(run)]
    rows = [[case, *(timing.get(fact) for fact in _FACTS)] for case, timing in timed]
    return pd.DataFrame(rows, columns=["case", *_FACTS]).astype(dict.fromkeys(_FACTS, "float64") | {"case": "str"})


def blind_spots(run: Run) -> pd.DataFrame:
    """What of a watched program or a trace could not be seen. Columns: case; blind_spot, in words with its remedy."""
    rows = [(entry["case"], spot) for entry in _entries(run)
            for spot in entry.get("passes", {}).get("timing", {}).get("blind_spots", [])]
    return pd.DataFrame(rows, columns=["case", "blind_spot"], dtype="str")


def dropped(run: Run) -> pd.DataFrame:
    """What of each trace is not in the record. Columns: case; pass; what, in the plural; num_dropped; reason."""
    rows = [(entry["case"], name, one["what"], one["num_dropped"], one["reason"]) for entry in _entries(run)
            for name, facts in entry.get("passes", {}).items() for one in facts.get("dropped", [])]
    return pd.DataFrame(rows, columns=["case", "pass", "what", "num_dropped", "reason"])


def phase_evidence(run: Run) -> pd.DataFrame:
    """What told the phases of each trace. Columns: case; phase; evidence, in words."""
    rows = [(entry["case"], phase, "; ".join(told)) for entry in _entries(run)
            for phase, told in entry.get("passes", {}).get("timing", {}).get("evidence", {}).items()]
    return in_order(pd.DataFrame(rows, columns=["case", "phase", "evidence"], dtype="str"), run, "case", "phase")


def _entries(run: Run) -> list[dict[str, Any]]:
    return list(run.manifest["cases"]) if is_watched(run) or is_imported(run) else []


def has_unexplained_other(run: Run, case: str) -> bool:
    """Whether more than a tenth of the time of a watched program's case is `other`, and no sampler looked there."""
    found = attribution(run)
    much = found.loc[found["case"] == case, "attributed_frac"] < 1 - _MUCH_FRAC
    sampled = {entry["case"] for entry in run.manifest["cases"] if "frames" in entry.get("passes", {})}
    return is_watched(run) and bool(much.any()) and case not in sampled


@once
def sampled_frames(run: Run) -> pd.DataFrame:
    """Where the program was while its time was `other`, by a sampler; the place that was seen most often first.

    Columns: case; place, file and line of the program's own code; function; library, the function of a library that it
    had called (null where the line itself was at work); num_samples; share_frac of the case's samples in `other`, those
    of places that were not kept included; time_s, that share of the case's mean `other` time per iteration.

    *Error*: sampled every 10 ms, so a share p of n samples has a standard error of sqrt(p (1 - p) / n) at best.
    """
    rows: list[dict[str, Any]] = []
    for entry in run.manifest["cases"]:
        sampled = entry.get("passes", {}).get("frames", {})
        rows += [{"case": entry["case"], **frame, "share_frac": frame["num_samples"] / sampled["num_samples"]}
                 for frame in sampled.get("frames", [])]  # fmt: skip
    frames = pd.DataFrame(rows, columns=["case", *_FRAMES, "share_frac"])
    frames = frames.astype({"case": "str", "num_samples": "float64", "share_frac": "float64"})
    iterations = run.iterations
    other_s = iterations[iterations["phase"] == "other"].groupby("case")["host_s"].sum()
    other_s = other_s / iterations.groupby("case")["iteration"].nunique()
    frames["time_s"] = frames["share_frac"] * frames["case"].map(other_s).astype("float64")
    return frames
