"""Largest cases that fit into a device's memory, and cases that ran out of memory."""

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.analysis.memory.by_input_size import SERIES, case_series
from charact.record.manifest_passes import PredictionPass
from charact.record.reader import Run
from charact.record.schema import MEMORY_CATEGORIES, column_names

_FACTS = ["phase", "composition_source", "fits_reason"]
_LIMITS = ["requested_bytes", "free_bytes", "limit_bytes"]
_NEEDED_PARTS = ["allocated_bytes", "context_bytes"]


def _parts_of_needed(facts: PredictionPass) -> tuple[float | None, float | None]:
    is_known = facts.context_high_bytes is not None
    return (facts.peak_bytes, facts.context_high_bytes) if is_known else (None, None)


def memory_fits(run: Run) -> pd.DataFrame:
    """Return the largest batch or input size that fits into a device's memory, one row for each search.

    Columns: those of the table `fits`, with `device` renamed to `target`; the `SERIES` columns and input_size of
    the case of the result; allocated_bytes and context_bytes, parts of needed_bytes (see `memory_room`); ended_by,
    'memory' or why the search ended before a value did not fit (null in a record without it).
    """
    fits = run.fits.rename(columns={"device": "target"})
    fits = fits.merge(case_series(run)[["case", *SERIES, "input_size"]], on="case", how="left")
    passes = [run.entry(case).passes for case in fits["case"]]
    parts = pd.DataFrame([[*_parts_of_needed(each.prediction), each.fit.ended_by] for each in passes],
                         index=fits.index, columns=[*_NEEDED_PARTS, "ended_by"])
    fits = fits.join(parts.astype(dict.fromkeys(_NEEDED_PARTS, "float64") | {"ended_by": "object"}))
    columns = ["target" if name == "device" else name for name in column_names("fits")]
    return in_order(fits, run, "case")[[*columns, *SERIES, "input_size", *_NEEDED_PARTS, "ended_by"]]


def memory_room(run: Run) -> pd.DataFrame:
    """Return the estimated cases that fit the named memory or device, one row for each.

    Cases that do not fit are in `out_of_memory`. No rows for a search, whose result is in `memory_fits`.

    Columns: case; target, the name of the device; limit_bytes of its memory; needed_bytes, the upper end of the
    estimate, on a GPU with what the allocator reserves and the CUDA context; margin_bytes, the difference;
    allocated_bytes, the estimated peak, and context_bytes, the upper bound of the CUDA context, the parts of
    needed_bytes on a GPU (null on a CPU). The rest of needed_bytes is what the allocator reserves in addition.
    """
    options = run.manifest.get("options", {})
    named = (options.get("device_memory_bytes") or options.get("device_like")) and not options.get("fit")
    predictions = [(entry.case, entry.passes.prediction) for entry in run.entries]
    rows = [[case, facts.device, facts.device_memory_bytes, facts.needed_bytes, *_parts_of_needed(facts)]
            for case, facts in predictions if named and facts.fits]
    numbers = ["limit_bytes", "needed_bytes", *_NEEDED_PARTS]
    room = pd.DataFrame(rows, columns=["case", "target", *numbers])
    room = room.astype({"case": "str", "target": "str"} | dict.fromkeys(numbers, "float64"))
    return room.assign(margin_bytes=room["limit_bytes"] - room["needed_bytes"])


def limited_cpu(run: Run) -> tuple[float, list[str]] | None:
    """Return the memory limit (bytes) and the GPUs of about that memory, if it was applied to a CPU without a request.

    None if a device was named, if there was a GPU, and without a limit.
    """
    options = run.manifest.get("options", {})
    limit_bytes, gpus = options.get("device_memory_bytes"), options.get("gpus_of_that_memory")
    if not isinstance(gpus, list) or not isinstance(limit_bytes, int | float):
        return None
    return float(limit_bytes), [str(name) for name in gpus]


def out_of_memory(run: Run) -> pd.DataFrame:
    """Return one row for each case that ran out of memory, if the record has details.

    Columns: case; reason; phase of the failed allocation; its requested_bytes; free_bytes of limit_bytes at that time
    (null if not available or only estimated); held_bytes, the sum of `out_of_memory_composition`; composition_source;
    fits_batch_size and fits_input_size, estimates of the largest sizes that would have fitted (null if not even the
    smallest fits, or for fits_reason).
    """
    rows = []
    for entry in run.entries:
        if (facts := entry.out_of_memory) is not None:
            sizes = [facts.fits.batch_size, facts.fits.input_size] if facts.fits else [None, None]
            rows.append([entry.case, *(getattr(facts, name) for name in (*_FACTS, *_LIMITS)),
                         sum((facts.composition or {}).values()), *sizes, entry.reason])
    numbers = [*_LIMITS, "held_bytes", "fits_batch_size", "fits_input_size"]
    table = pd.DataFrame(rows, columns=["case", *_FACTS, *numbers, "reason"])
    return table.astype({"case": "str"} | dict.fromkeys(numbers, "float64"))


def out_of_memory_composition(run: Run) -> pd.DataFrame:
    """Return the memory in use by category when a case ran out of memory.

    Columns: case; category; bytes, at the failed allocation if composition_source of `out_of_memory` is 'measured', at
    the estimated peak if it is 'predicted'.
    """
    rows = [
        [entry.case, category, entry.out_of_memory.composition[category]]
        for entry in run.entries if entry.out_of_memory is not None and entry.out_of_memory.composition
        for category in MEMORY_CATEGORIES if category in entry.out_of_memory.composition
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["case", "category", "bytes"]).astype({"bytes": "float64"})
