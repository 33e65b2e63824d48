"""Peak of the memory that PyTorch allocated."""

from collections.abc import Iterator

import pandas as pd

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.memory.composition import memory_peaks
from charact.record.reader import Run


def _peaks(run: Run) -> Iterator[tuple[str, Sample]]:
    for row in memory_peaks(run).to_dict("records"):
        method = "predicted" if pd.isna(row["measured_bytes"]) else "measured"
        if pd.notna(row[f"{method}_bytes"]):
            yield row["case"], Sample(float(row[f"{method}_bytes"]), basis=method, exact=True)


METRIC = Metric("peak_memory", 30, "peak memory", "B", "largest sum of tensors that PyTorch allocated, measured if "
                "available, else estimated", _peaks, is_exact=True, measured_by="memory")
