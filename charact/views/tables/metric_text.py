"""Words for metrics of comparisons, and texts of their values."""

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.metrics._metric import Unit
from charact.views.tables import format as fmt
from charact.views.tables.counter_text import energy
from charact.views.tables.model import Formatter

_FORMATTERS: dict[Unit, Formatter] = {
    "s": fmt.seconds, "B": fmt.num_bytes, "J": energy, "1": fmt.share, "samples/s": fmt.number,
    "tokens/s": fmt.number}
_IN_LABELS = ("samples/s", "tokens/s")
"""Units that the label of their metric is."""


def label(metric: str) -> str:
    """Return the name of a metric in words."""
    return all_metrics()[metric].label


def unit(metric: str) -> str:
    """Return the unit of a metric as shown: % for a fraction, and none where the label has it."""
    of_metric = all_metrics()[metric].unit
    return "%" if of_metric == "1" else "" if of_metric in _IN_LABELS else of_metric


def value(metric: str, number: float | None, reason: str | None = None) -> str:
    """Return a value of a metric with its unit, unless the label has it."""
    return _FORMATTERS[all_metrics()[metric].unit](number, reason)


def value_alone(metric: str, number: float | None, reason: str | None = None) -> str:
    """Return a value with its unit where no label stands next to it; also of `phase.` with a phase."""
    name = "time" if metric.startswith("phase.") else metric
    of_metric = all_metrics()[name].unit
    added = f" {of_metric}" if of_metric in _IN_LABELS and not fmt.absent(number) else ""
    return f"{value(name, number, reason)}{added}"
