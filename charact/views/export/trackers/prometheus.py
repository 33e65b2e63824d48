"""Export to a file that the textfile collector of Prometheus' node exporter reads.

A gauge has one value, so a series becomes statistics over its iterations or epochs.
"""

import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from charact.core.errors import UserError
from charact.core.files import write_text
from charact.record.reader import Run
from charact.views.export.tracker import Tracker, case_parameters, client, metrics

_SUFFIX = ".prom"
_INFO = ("workload", "variant", "input_size", "batch_size", "mode", "precision", "device", "device_name", "status")
"""Labels of `charact_case_info`."""

Labels = tuple[tuple[str, str], ...]


def _export(run: Run, target: Path | None, force: bool) -> str:
    prometheus: Any = client("prometheus_client", "prometheus")
    path = target or Path(f"{run.run_id}{_SUFFIX}")
    if path.suffix != _SUFFIX:
        raise UserError(f"{path} does not end in {_SUFFIX}, so the textfile collector would not read it: rename it")
    registry = prometheus.CollectorRegistry()
    info = prometheus.Gauge("charact_case_info", "Parameters of a case; the value is always 1.",
                            ["run", "case", *_INFO], registry=registry)
    for case, known in case_parameters(run).items():
        info.labels(run=run.run_id, case=case, **{name: str(known.get(name, "")) for name in _INFO}).set(1)
    for name, values in sorted(_gauges(run).items()):
        labels = [label for label, _ in next(iter(values))]
        gauge = prometheus.Gauge(name, "A series of charact, as in TensorBoard's Time Series.", labels,
                                 registry=registry)
        for each, value in values.items():
            gauge.labels(**dict(each)).set(value)
    write_text(path, prometheus.generate_latest(registry).decode(), force=force)
    return f"Wrote {path}"


def _gauges(run: Run) -> dict[str, dict[Labels, float]]:
    """Return values by gauge and labels.

    A series of a case, by iteration or epoch, becomes the gauge `charact_<series>` with the labels run, case and
    statistic: last, median, min and max. A series over input sizes becomes one value for each size, with the labels
    run, series and input_size.
    """
    gauges: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    cases = sorted((entry.case for entry in run.entries), key=len, reverse=True)
    for tag, points in metrics(run).items():
        case = next((case for case in cases if tag.startswith(f"{case}/")), None)
        if case is None:
            name, _, series = tag.partition("/")
            gauges[f"{_name(name)}_by_size"] |= {
                (("run", run.run_id), ("series", series), ("input_size", str(size))): value
                for size, value in points.items()}
        else:
            values = list(points.values())
            statistics = {"last": values[-1], "median": median(values), "min": min(values), "max": max(values)}
            gauges[_name(tag[len(case) + 1 :])] |= {
                (("run", run.run_id), ("case", case), ("statistic", statistic)): value
                for statistic, value in statistics.items()}
    return dict(gauges)


def _name(text: str) -> str:
    return "charact_" + re.sub(r"[^a-zA-Z0-9_]", "_", text)


TRACKER = Tracker("prometheus", _export, writes_file=True)
