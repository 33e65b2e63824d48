"""What counters tell of a case, for the terminal: one line of those worth seeing."""

from rich.console import RenderableType
from rich.text import Text

from charact import analysis
from charact.store import Run
from charact.views import format as fmt
from charact.views.counter_words import energy, power

_BUSY = {
    "CPU": (("host", "cpu_utilization_frac"),),
    "GPU": (("nvml", "utilization_frac"), ("amd", "utilization_frac"), ("kineto", "utilization_frac")),
}
"""What tells how busy something is; the first source that does."""


def counter_line(run: Run, case: str) -> list[RenderableType]:
    """How busy processor and device were, and what an iteration cost; nothing where nothing of it was read."""
    values, spent = (frame[frame["case"] == case] for frame in (analysis.counter_values(run), analysis.energy(run)))
    read = values.groupby(["source", "counter"])["value"].mean().to_dict()
    parts = []
    for name, tellers in _BUSY.items():
        busy = next((read[teller] for teller in tellers if teller in read), None)
        if busy is not None:
            parts.append(f"{name} {fmt.share(busy)} busy")
    if spent["power_w"].notna().any():
        parts.append(power(spent["power_w"].sum()))
    if spent["energy_per_iteration_j"].notna().any():
        parts.append(f"{energy(spent['energy_per_iteration_j'].sum())} an iteration")
    return [Text(", ".join(parts))] if parts else []
