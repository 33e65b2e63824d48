"""Time of an inference on a data set."""

from collections.abc import Iterator

import pandas as pd

from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import PUBLISHED
from charact.analysis.training.stages import inference_summary
from charact.record.reader import Run


def _inferences(run: Run) -> Iterator[tuple[str, Sample]]:
    if not run.entries_with("inference"):
        return
    for row in inference_summary(run).to_dict("records"):
        inference = run.entry(row["case"]).passes.inference
        if inference.total_s is not None:
            yield row["case"], Sample(inference.total_s, reason=PUBLISHED)
        elif pd.notna(row["total_warm_s"]):
            basis = f"{inference.num_samples} samples"
            yield row["case"], Sample(float(row["total_warm_s"]), reason=ONE_VALUE, basis=basis)


METRIC = Metric("inference_time", 80, "load and prediction", "s", "warm load of a data set and prediction of it",
                _inferences)
