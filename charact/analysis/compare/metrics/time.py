"""Time of a case."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import CASE, time_samples
from charact.record.reader import Run


def _times(run: Run) -> Iterator[tuple[str, Sample]]:
    for case, samples in time_samples(run, CASE).items():
        yield case, samples[CASE]


METRIC = Metric(
    "time", 10, "time", "s", "time of the median iteration; of a training's mean epoch, of a call of an operation in "
    "each direction, of each of a suite's bricks once, or a constructed model's latency", _times)
