"""Measured iteration of a constructed model."""

from collections.abc import Iterator

from charact.analysis.common.significance import Sample, timed
from charact.analysis.compare.metrics._metric import Metric
from charact.analysis.profile.case_summary import iteration_times
from charact.record.reader import Run


def _verified(run: Run) -> Iterator[tuple[str, Sample]]:
    constructed = set(run.constructions["case"])
    if not constructed:
        return
    for case, walls in iteration_times(run).groupby("case", sort=False)["wall_s"]:
        if case in constructed:
            yield str(case), timed(walls.tolist())


METRIC = Metric("measured_time", 90, "measured iteration", "s", "median iteration of a constructed model that was also "
                "run", _verified)
