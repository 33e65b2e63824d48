"""Python's garbage collector takes much of some iterations."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if garbage collections of at least 1 ms take much of the time."""
    rows = case.iterations[case.iterations["kind"] == "timed"]
    spent_s = float(rows["gc_s"].sum()) * case.num_iterations / max(len(rows), 1)
    saving = case.saving_in_all(0.7 * spent_s, spent_s)
    if saving is None:
        return
    count = int(rows["gc_s"].notna().sum())
    line = next((line for line in case.lines("other") if "gc.collect(" in (line.place.text or "")), None)
    yield Finding(
        "Python's garbage collector runs often and long",
        "remove calls of gc.collect() from the loop; call gc.freeze() once before it, or gc.disable() before it and "
        "gc.collect() after each epoch",
        saving, (f"collections take {quantity(float(rows['gc_s'].sum()), 's')}, "
                 f"{share(float(rows['gc_s'].sum() / rows['wall_s'].sum()))} of the iterations' time; "
                 f"{count} of {len(rows)} iterations have a collection of at least 1 ms",), setting="gc",
        place=None if line is None else line.place, explains_line=True)
