"""Summary of cases that several runs have."""

from typing import Any

import pandas as pd

from charact.core.statistics import median_interval

_NUMBERS = ["median_s", "low_s", "high_s", "fastest_s", "slowest_s", "flop", "flop_per_s", "peak_bytes"]


def repeated_cases(cases: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each case that several runs have.

    Args:
        cases: rows of `case_summary` of all runs, with the column verdict of `bottlenecks`.

    Columns: case; num_runs with the case; num_ok, those in which it ended well; median_s, the median over these of the
    median iterations, with its 95 % interval low_s to high_s (null below 6 runs); fastest_s and slowest_s of them;
    verdict, the most frequent one (null without any), and num_verdict, the runs with it; flop, flop_per_s and
    peak_bytes, medians over the runs.
    peak_bytes, medians over the runs.
    """
    rows = [_over_runs(str(case), some) for case, some in cases.groupby("case", sort=False) if len(some) > 1]
    columns = ["case", "num_runs", "num_ok", *_NUMBERS, "verdict", "num_verdict"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_NUMBERS, "float64"))


def _over_runs(case: str, runs: pd.DataFrame) -> dict[str, Any]:
    times = runs["median_s"].dropna()
    low_s, high_s = median_interval(times.tolist()) or (None, None)
    verdicts = runs["verdict"].dropna().value_counts()
    return {
        "case": case, "num_runs": len(runs), "num_ok": int((runs["status"] == "ok").sum()),
        "median_s": times.median(), "low_s": low_s, "high_s": high_s, "fastest_s": times.min(),
        "slowest_s": times.max(), "verdict": verdicts.index[0] if len(verdicts) else None,
        "num_verdict": int(verdicts.iloc[0]) if len(verdicts) else 0,
        **{name: runs[name].median() for name in ("flop", "flop_per_s", "peak_bytes")},
    }  # fmt: skip
