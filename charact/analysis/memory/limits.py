"""What fits into a memory, and what did not."""

from typing import Any

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.analysis.memory.growth import SERIES, case_series
from charact.record.reader import Run
from charact.record.schema import MEMORY_CATEGORIES, column_names

_TOLD = ["phase", "composition_source", "fits_reason"]
_LIMITS = ["requested_bytes", "free_bytes", "limit_bytes"]


def memory_fits(run: Run) -> pd.DataFrame:
    """The largest batch or input that fits a device, a row a search.

    Columns: those of the table `fits`, but `device` is called `target`; and the series of the search's case with its
    input_size.
    """
    fits = run.fits.rename(columns={"device": "target"})
    fits = fits.merge(case_series(run)[["case", *SERIES, "input_size"]], on="case", how="left")
    columns = ["target" if name == "device" else name for name in column_names("fits")]
    return in_order(fits, run, "case")[[*columns, *SERIES, "input_size"]]


def out_of_memory(run: Run) -> pd.DataFrame:
    """Cases that ran out of memory and have told how, one row each.

    Columns: case; reason; phase in which it did; requested_bytes, what was asked for, with free_bytes of limit_bytes
    (null where not told, and where it was only predicted); held_bytes, the sum of `out_of_memory_composition`, which is
    of that moment where composition_source is 'measured', and of the peak where it is 'predicted'; fits_batch_size and
    fits_input_size, the largest that would have fitted, predicted (null where not even the smallest does, or for
    fits_reason).
    """
    rows = []
    for case, facts in _told(run):
        fits = facts.get("fits") or {}
        held = sum((facts.get("composition") or {}).values())
        rows.append([case, *(facts.get(name) for name in _TOLD), *(facts.get(name) for name in _LIMITS), held,
                     fits.get("batch_size"), fits.get("input_size")])  # fmt: skip
    numbers = [*_LIMITS, "held_bytes", "fits_batch_size", "fits_input_size"]
    told = pd.DataFrame(rows, columns=["case", *_TOLD, *numbers])
    reasons = {entry["case"]: entry.get("reason") for entry in run.manifest["cases"]}
    told["reason"] = told["case"].map(reasons)
    return told.astype({"case": "str"} | dict.fromkeys(numbers, "float64"))


def out_of_memory_composition(run: Run) -> pd.DataFrame:
    """What was held when a case ran out of memory: columns case; category; bytes."""
    rows = [
        [case, category, float(facts["composition"][category])]
        for case, facts in _told(run)
        for category in MEMORY_CATEGORIES
        if category in (facts.get("composition") or {})
    ]
    return pd.DataFrame(rows, columns=["case", "category", "bytes"]).astype({"bytes": "float64"})


def _told(run: Run) -> list[tuple[str, dict[str, Any]]]:
    told = [(entry["case"], entry.get("out_of_memory")) for entry in run.manifest["cases"]]
    return [(case, facts) for case, facts in told if facts]
