"""Time of an inference on a data set."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import PUBLISHED
from charact.analysis.training.stages import inference_summary
from charact.record.case_facts import pass_facts
from charact.record.reader import Run


def _inferences(run: Run) -> Iterator[tuple[str, Sample]]:
    published: dict[str, Any] = {
        entry["case"]: pass_facts(entry, "inference") for entry in run.manifest["cases"]}
    if not any(published.values()):
        return
    for row in inference_summary(run).to_dict("records"):
        facts = published[row["case"]]
        if "total_s" in facts:
            yield row["case"], Sample(float(facts["total_s"]), reason=PUBLISHED)
        elif pd.notna(row["total_warm_s"]):
            yield row["case"], Sample(float(row["total_warm_s"]), reason=ONE_VALUE,
                                      basis=f"{facts.get('num_samples')} samples")  # fmt: skip


METRIC = Metric("inference_time", 80, "load and prediction", "s", "warm load of a data set and prediction of it",
                _inferences)
