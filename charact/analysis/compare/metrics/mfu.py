"""Model FLOP utilization."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import iteration_rates
from charact.analysis.efficiency.flop_utilization import flop_utilization, mfu_reason
from charact.record.reader import Run


def _shares(run: Run) -> Iterator[tuple[str, Sample]]:
    return iteration_rates(run, flop_utilization(run).set_index("case")["mfu_frac"])


METRIC = Metric("mfu", 24, "MFU", "1", "model FLOP utilization: counted FLOP of an iteration, without recomputed ones, "
                "over its time and the datasheet's peak of the device in the case's precision", _shares,
                higher_is_better=True, measured_by="flop", why_missing=mfu_reason, is_limited_itself=True)
