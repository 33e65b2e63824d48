"""Texts on an inference server's steps: what limits them."""

from typing import Any

import pandas as pd

from charact.views.tables import format as fmt

CAUSES = {
    "launch": "the host, which launches late", "copy": "copies",
    "queue": "queued work, perhaps behind work that the trace lacks",
    "host": "the host outside of steps", "kernel": "kernels outside of steps", "inside": "the next kernel of a step",
}  # fmt: skip
"""What the device waits for, by cause of idle time."""
_REPORTED_FRAC = 0.05
"""Smallest share of idle time that a sentence names."""
_BUSY_FRAC = 0.8
"""Busy share from which the GPU limits the steps."""


def limit(row: Any) -> str:
    """Return a sentence from a row of `serving_limits`, without a capital letter and a full stop.

    It names the step kind with most time, its median, and what limits it.
    """
    steps = "steps of unknown kind" if pd.isna(row.kind) else f"{row.kind} steps"
    share = "all" if row.share_frac >= 1 else fmt.share(row.share_frac)
    words = f"{steps} take {share} of the steps’ time, {fmt.seconds(row.median_s)} each (median)"
    if fmt.absent(row.busy_frac):
        return f"{words}, on the host"
    works = f"it works {fmt.share(row.busy_frac)} of the time, gaps included"
    if isinstance(row.idle_cause, str) and row.idle_frac >= _REPORTED_FRAC:
        works += f", and waits {fmt.share(row.idle_frac)} for {CAUSES[row.idle_cause]}"
    return f"{words}; the GPU {'limits them: ' if row.busy_frac >= _BUSY_FRAC else 'does not limit them: '}{works}"
