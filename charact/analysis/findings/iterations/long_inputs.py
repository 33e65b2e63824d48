"""A few iterations with large inputs take much of the time."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if iterations with larger inputs are slower than the others."""
    group = case.slow_groups.get("long_inputs")
    if group is None:
        return
    saving = case.saving_in_all(group.extra_s * 0.3, group.extra_s, "bound")
    if saving is None:
        return
    count, num_all = len(group.indices), len(case.iterations)
    evidence = (f"{count} of {num_all} iterations ({share(count / num_all)}) have inputs of more than 1.5 times the "
                f"median size; they take {quantity(group.slow_s, 's')}, the others {quantity(group.typical_s, 's')}")
    yield Finding(
        "a few batches of long inputs take much of the time",
        "truncate or split the longest inputs, and bucket the others: batch inputs of similar length, up to a fixed "
        "number of elements", saving, (evidence,), "medium", phase=group.phase, setting="input shapes")
