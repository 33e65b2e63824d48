"""Peak of a process's resident memory."""

from collections.abc import Iterator

from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare.metrics._metric import Metric
from charact.record.reader import Run


def _process_peaks(run: Run) -> Iterator[tuple[str, Sample]]:
    for entry in run.entries:
        program = entry.passes.timing.program
        if program is not None and program.process_peak_bytes:
            yield entry.case, Sample(program.process_peak_bytes, reason=ONE_VALUE)


METRIC = Metric("process_memory", 40, "peak memory of the process", "B", "largest resident set of a watched script's "
                "process, also of NumPy and Python, without charact's passes", _process_peaks)
