"""Samples per second."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import CASE, epoch_times, epochs_sample, rate, time_samples
from charact.analysis.profile.case_summary import iteration_times
from charact.analysis.training.stages import stage_times
from charact.record.reader import Run


def _rates(run: Run) -> Iterator[tuple[str, Sample]]:
    in_training = {case for case, _ in epoch_times(run)}
    walls = iteration_times(run).groupby("case")["wall_s"]
    for case, samples in time_samples(run, CASE).items():
        entry = run.entry(case)
        if entry.batch_size is None or case in in_training:
            continue
        num_samples = entry.passes.timing.num_samples
        # The rate of a watched program is that of its summary: all samples / the time of all iterations.
        amount = (float(entry.batch_size) if num_samples is None else
                  samples[CASE].value * num_samples / float(walls.get_group(case).sum()))
        yield case, rate(amount, samples[CASE])
    if not in_training:
        return
    trained = stage_times(run).query("stage == 'training'").dropna(subset=["samples_per_s"])
    for of_case, epochs in trained.groupby("case", sort=False):
        mean = float(epochs["num_samples"].sum() / epochs["wall_s"].sum())
        yield str(of_case), epochs_sample(epochs["samples_per_s"], mean)


METRIC = Metric("throughput", 20, "samples/s", "samples/s", "batch size over the time of an iteration; of a watched "
                "program, all timed samples over their time; of a training, samples of its training stage over that "
                "stage's time", _rates, higher_is_better=True)
