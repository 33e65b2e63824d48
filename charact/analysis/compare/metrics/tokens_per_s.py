"""Tokens per second."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.compare.samples import iteration_rates
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run


def _rates(run: Run) -> Iterator[tuple[str, Sample]]:
    return iteration_rates(run, case_summary(run).set_index("case")["tokens_per_s"])


METRIC = Metric("tokens_per_s", 22, "tokens/s", "tokens/s", "tokens of text that the model reads in an iteration, "
                "without padding, over its time", _rates, higher_is_better=True)
