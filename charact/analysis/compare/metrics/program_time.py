"""Time of a whole program."""

from collections.abc import Iterator

from charact.analysis.common.script_attribution import time_outside
from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.record.reader import Run


def _programs(run: Run) -> Iterator[tuple[str, Sample]]:
    programs = time_outside(run)
    for case, duration_s in zip(programs["case"], programs["duration_s"].to_numpy(dtype="float64"), strict=True):
        yield str(case), Sample(float(duration_s), reason=ONE_VALUE)


METRIC = Metric("program_time", 100, "whole program", "s", "time of a watched script from its start to its end, "
                "without charact's passes; the first of its cases has it", _programs)
