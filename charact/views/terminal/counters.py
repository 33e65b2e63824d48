"""What counters tell of a case, for the terminal: one line of those worth seeing."""

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from charact.analysis.efficiency import utilization
from charact.analysis.efficiency.counters import counter_values
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables.counter_text import energy, power

_BUSY = {
    "{} of the CPU used": (("host", "cpu_utilization_frac"),),  # by this process: others may keep it busy, too
    "GPU {} busy": tuple((source, "utilization_frac") for source in ("gpm", "nvml", "amd", "kineto")),
}
"""What tells how busy something is; the first source that does. NVML's own window reaches back before the pass."""


def counter_line(run: Run, case: str) -> list[RenderableType]:
    """How busy processor and device were, and what an iteration cost; nothing where nothing of it was read."""
    values, spent = (frame[frame["case"] == case] for frame in (counter_values(run), utilization.energy(run)))
    read = values.groupby(["source", "counter"])["value"].mean().to_dict()
    parts = []
    for words, tellers in _BUSY.items():
        busy = next((read[teller] for teller in tellers if teller in read), None)
        if busy is not None:
            parts.append(words.format(fmt.share(busy)))
    for row in fmt.rows(spent):
        of = f"{row.device} " if len(spent) > 1 else ""  # that of a device is not known, perhaps: no sum is told
        if pd.notna(row.power_w):
            parts.append(f"{of}{power(row.power_w)}")
        if pd.notna(row.energy_per_iteration_j):
            parts.append(f"{energy(row.energy_per_iteration_j)} an iteration")
    return [Text(", ".join(parts))] if parts else []
