"""What one iteration holds from moment to moment, and the moment at which it holds most."""

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.record.reader import Run

_MOMENT = ["case", "method", "moment", "time_s", "phase", "layer", "operator"]


def memory_timeline(run: Run) -> pd.DataFrame:
    """Bytes of each category at the recorded moments of an iteration, in the order of time.

    Columns: case; method; moment, numbered from 0; time_s since the iteration's start (null where predicted: a
    prediction knows the order of events, not their times); phase; layer and operator at work, null outside of any and
    where not told; category; bytes. Moments of long timelines were thinned out when they were recorded, but never the
    peaks.
    """
    rows = run.memory
    rows = rows[rows["kind"] == "timeline"]
    # The first records number no moments: there a moment is its time.
    moment = rows["moment"].astype("float64").fillna(
        rows.groupby(["case", "method"])["time_s"].rank(method="dense") - 1
    )
    rows = rows.assign(moment=moment)
    held = rows.groupby([*_MOMENT, "category"], dropna=False, as_index=False)[["bytes"]].sum()
    held = in_order(held, run, "category").sort_values(["method", "moment"], kind="stable")
    return in_order(held, run, "case")[[*_MOMENT, "category", "bytes"]]


def peak_moments(run: Run) -> pd.DataFrame:
    """Where in the iteration the peak lies: one row a case and method.

    Columns: case; method; phase; layer and operator at work at the peak, null outside of any and where not told; bytes.
    """
    rows = run.memory
    keys = ["case", "method", "phase", "layer", "operator"]
    peaks = rows[rows["kind"] == "peak"].groupby(keys, dropna=False, as_index=False)[["bytes"]].sum()
    return in_order(peaks, run, "case")
