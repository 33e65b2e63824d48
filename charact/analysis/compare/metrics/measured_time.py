"""Measured iteration of a constructed model."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.profile.case_summary import iteration_samples
from charact.record.reader import Run


def _verified(run: Run) -> Iterator[tuple[str, Sample]]:
    if constructed := set(run.constructions["case"]):
        yield from ((case, sample) for case, sample in iteration_samples(run).items() if case in constructed)


METRIC = Metric("measured_time", 90, "measured iteration", "s", "median iteration of a constructed model that was also "
                "run", _verified)
