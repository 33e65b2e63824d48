"""Where memory goes: its composition at the peak, in each phase, and as inputs grow."""

import pandas as pd

from charact.analysis.order import in_order
from charact.store import Run

_SERIES = ["workload", "variant", "mode", "batch_size", "precision", "device"]


def memory_composition(run: Run) -> pd.DataFrame:
    """Bytes of each category at the iteration's peak, categories in the order of the schema.

    Columns: case; method (measured or predicted); phase in which the peak lies; category; bytes; share_frac of the
    peak. The categories of a case and method sum to its peak.
    """
    return _composition(run, "peak")


def memory_by_phase(run: Run) -> pd.DataFrame:
    """Bytes of each category at the peak of each phase; columns as in `memory_composition`."""
    return _composition(run, "phase_peak")


def _composition(run: Run, kind: str) -> pd.DataFrame:
    rows = run.memory
    keys = ["case", "method", "phase", "category"]
    held = rows[rows["kind"] == kind].groupby(keys, as_index=False)[["bytes"]].sum()
    total = held.groupby(["case", "method", "phase"])["bytes"].transform("sum")
    held["share_frac"] = held["bytes"].div(total.where(total > 0))
    return in_order(held, run, "case", "phase", "category")


def memory_by_size(run: Run) -> pd.DataFrame:
    """Peak memory against input size: a row a category, of cases that differ in input size only, smallest first.

    Columns: workload, variant, mode, batch_size, precision, device (together: a series); input_size (pixels or
    tokens); case; method; category; bytes.
    """
    columns = [*_SERIES, "input_size", "case"]
    cases = run.cases.reindex(columns=columns).astype({"case": "str"})
    rows = cases.merge(memory_composition(run), on="case", how="inner")
    rows = rows.sort_values([*_SERIES, "input_size"], kind="stable", ignore_index=True)
    return rows[[*columns, "method", "category", "bytes"]]
