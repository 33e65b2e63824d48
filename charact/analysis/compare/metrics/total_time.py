"""Total time of a training."""

from collections.abc import Iterator
from dataclasses import replace

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import PUBLISHED, epoch_times, epochs_sample, num_epochs
from charact.record.reader import Run


def _totals(run: Run) -> Iterator[tuple[str, Sample]]:
    for case, walls in epoch_times(run):
        number = num_epochs(run, case) or len(walls)
        basis = f"{number} epoch{'' if number == 1 else 's'}"
        if "reference" in run.manifest:
            yield case, Sample(float(walls.sum()), reason=PUBLISHED, basis=basis)
        else:
            sample = epochs_sample(walls, float(walls.sum()))
            yield case, replace(sample, basis=basis)


METRIC = Metric("total_time", 70, "total time", "s", "time of all epochs of a training, with validation", _totals)
