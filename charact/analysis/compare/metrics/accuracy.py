"""Accuracy of predictions."""

import math
from collections.abc import Iterator

from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import PUBLISHED
from charact.analysis.training.stages import prediction_metrics
from charact.record.reader import Run


def _accuracies(run: Run) -> Iterator[tuple[str, Sample]]:
    predicted = prediction_metrics(run).query("metric == 'accuracy'").set_index("case")["value"].dropna().to_dict()
    for entry in run.entries:
        training, inference = entry.passes.training, entry.passes.inference
        if training.best is not None and training.best.metric == "accuracy":
            yield entry.case, _proportion(run, training.best.value, training.num_valid_samples)
        elif entry.case in predicted:
            yield entry.case, _proportion(run, predicted[entry.case], inference.num_samples)


def _proportion(run: Run, value: float, num_samples: int | None) -> Sample:
    if not num_samples:
        return Sample(value, reason=PUBLISHED if "reference" in run.manifest else ONE_VALUE)
    # Two successes and two failures are added, so that an accuracy of 1 also has an error (Agresti and Coull 1998).
    share = (value * num_samples + 2) / (num_samples + 4)
    return Sample(value, reason=ONE_VALUE, error_frac=math.sqrt((1 - share) / share / (num_samples + 4)))


METRIC = Metric("accuracy", 50, "accuracy", "1", "share of correct predictions, of a training the best on validation "
                "data; the interval covers the choice of samples, not the seed", _accuracies, higher_is_better=True)
