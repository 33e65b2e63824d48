"""Total time of a training."""

from collections.abc import Iterator
from dataclasses import replace

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import PUBLISHED, epoch_times, epochs_sample
from charact.record.reader import Run


def _totals(run: Run) -> Iterator[tuple[str, Sample]]:
    for case, walls in epoch_times(run):
        number = run.entry(case).passes.training.num_epochs or len(walls)
        basis = f"{number} epoch{'' if number == 1 else 's'}"
        total_s = float(walls.sum())
        sample = Sample(total_s, reason=PUBLISHED) if "reference" in run.manifest else epochs_sample(walls, total_s)
        yield case, replace(sample, basis=basis)


METRIC = Metric("total_time", 70, "total time", "s", "time of all epochs of a training, with validation", _totals)
