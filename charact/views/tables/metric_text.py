"""Words for metrics of comparisons, and texts of their values."""

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.metrics._metric import Unit
from charact.views.tables import format as fmt
from charact.views.tables.counter_text import energy
from charact.views.tables.model import Formatter

_FORMATTERS: dict[Unit, Formatter] = {
    "s": fmt.seconds, "B": fmt.num_bytes, "J": energy, "1": fmt.share, "samples/s": fmt.number}


def label(metric: str) -> str:
    """Return the name of a metric in words."""
    return all_metrics()[metric].label


def unit(metric: str) -> str:
    """Return the unit of a metric as shown: % for a fraction, and none where the label has it."""
    return {"1": "%", "samples/s": ""}.get(all_metrics()[metric].unit, all_metrics()[metric].unit)


def value(metric: str, number: float | None, reason: str | None = None) -> str:
    """Return a value of a metric with its unit, unless the label has it."""
    return _FORMATTERS[all_metrics()[metric].unit](number, reason)


def value_alone(metric: str, number: float | None, reason: str | None = None) -> str:
    """Return a value with its unit where no label stands next to it; also of `phase.` with a phase."""
    name = "time" if metric.startswith("phase.") else metric
    added = " samples/s" if all_metrics()[name].unit == "samples/s" and not fmt.absent(number) else ""
    return f"{value(name, number, reason)}{added}"
