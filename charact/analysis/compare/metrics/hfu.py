"""Hardware FLOP utilization."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import iteration_rates
from charact.analysis.efficiency.flop_utilization import flop_utilization, mfu_reason
from charact.record.reader import Run


def _shares(run: Run) -> Iterator[tuple[str, Sample]]:
    return iteration_rates(run, flop_utilization(run).set_index("case")["hfu_frac"])


METRIC = Metric("hfu", 26, "HFU", "1", "hardware FLOP utilization: MFU with the FLOP of recomputed activations; only "
                "of cases that recompute some", _shares, higher_is_better=True, measured_by="flop",
                why_missing=lambda run, case: mfu_reason(run, case) or "nothing is recomputed", is_limited_itself=True)
