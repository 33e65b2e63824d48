"""Every n-th iteration does extra work, such as saving a checkpoint."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._line_text import advice_for
from charact.analysis.findings._slow_lines import slow_line
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if slow iterations follow each other by the same number."""
    group = case.slow_groups.get("periodic_work")
    if group is None:
        return
    saving = case.saving_in_all(group.extra_s * 0.5, group.extra_s)
    if saving is None:
        return
    line = slow_line(case, group)
    does = f"does extra work in {group.phase}" if line is None else f"{advice_for(line).does} at {line.place}"
    remedy = "do this less often, or in a background thread" if line is None else advice_for(line).remedy
    if group.period and "less often" not in remedy:
        remedy = f"do this less often than every {group.period} iterations; or {remedy}"
    evidence = (f"every {_ordinal(group.period)} of {len(case.iterations)} iterations takes "
                f"{quantity(group.slow_s, 's')} instead of {quantity(group.typical_s, 's')}; the difference "
                f"is {share(group.extra_s / float(case.iterations['wall_s'].sum()))} of the time of all iterations",)
    yield Finding(f"every {_ordinal(group.period)} iteration {does}", remedy, saving, evidence,
                  "high" if line else "medium", place=line.place if line else None, phase=group.phase)


def _ordinal(number: int | None) -> str:
    """Return a number as 2nd, 3rd or 4th; an empty text for None."""
    if number is None:
        return ""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
