"""Timeline of the memory of one iteration, and its peak."""

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.record.reader import Run

_SNAPSHOT = ["case", "method", "moment", "time_s", "phase", "layer", "operator"]


def memory_timeline(run: Run) -> pd.DataFrame:
    """Return the bytes of each category at the recorded snapshots of an iteration, in order of time.

    Columns: case; method; moment, the snapshot's index from 0; time_s since the iteration's start (null for estimates,
    which have the order of events but no times); phase; running layer and operator, null outside any and if not
    recorded; category; bytes. Long timelines were thinned out when recorded, but never at peaks.
    """
    rows = run.memory
    rows = rows[rows["kind"] == "timeline"]
    # The first records have no snapshot indices: there, the time identifies a snapshot.
    moment = rows["moment"].astype("float64").fillna(
        rows.groupby(["case", "method"])["time_s"].rank(method="dense") - 1
    )
    rows = rows.assign(moment=moment)
    held = rows.groupby([*_SNAPSHOT, "category"], dropna=False, as_index=False)[["bytes"]].sum()
    held = in_order(held, run, "category").sort_values(["method", "moment"], kind="stable")
    return in_order(held, run, "case")[[*_SNAPSHOT, "category", "bytes"]]


def peak_moments(run: Run) -> pd.DataFrame:
    """Return the place of the peak in the iteration: one row for each case and method.

    Columns: case; method; phase; layer and operator running at the peak, null outside any and if not recorded; bytes.
    """
    rows = run.memory
    keys = ["case", "method", "phase", "layer", "operator"]
    peaks = rows[rows["kind"] == "peak"].groupby(keys, dropna=False, as_index=False)[["bytes"]].sum()
    return in_order(peaks, run, "case")
