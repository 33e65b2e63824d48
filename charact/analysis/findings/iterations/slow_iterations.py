"""Some iterations are slow without a pattern."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._line_text import advice_for
from charact.analysis.findings._slow_lines import slow_line
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_MUCH_FRAC = 0.1
"""Minimum share of the loop's time of slow iterations without a line that explains them."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding about slow iterations that no other finding explains."""
    group = case.slow_groups.get("slow_iterations")
    if group is None:
        return
    saving = case.saving_in_all(group.extra_s * 0.5, group.extra_s)
    if saving is None:
        return
    line = slow_line(case, group)
    if line is not None and (line.library or "").startswith("torch.nn.modules."):
        line = None  # a layer, which computes in every iteration
    evidence = (f"{len(group.indices)} of {len(case.iterations)} iterations take {quantity(group.slow_s, 's')}, the "
                f"others {quantity(group.typical_s, 's')}: "
                f"{share(group.extra_s / float(case.iterations['wall_s'].sum()))} of the iterations' time, most of it "
                f"in {group.phase}",)
    if line is None and saving.high_s < _MUCH_FRAC * case.loop_s:
        return  # on most machines, something else runs now and then
    if line is None:
        yield Finding(
            f"some iterations take much longer in {group.phase} than the others, without a pattern",
            "look at the lines of these iterations: charact run --sample names them", saving, evidence, "low",
            phase=group.phase)
        return
    advice = advice_for(line)
    yield Finding(f"in some iterations, {line.function} {advice.does} ({line.place})", advice.remedy, saving, evidence,
                  "medium", place=line.place, phase=group.phase)
