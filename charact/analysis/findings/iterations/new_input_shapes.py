"""Iterations with inputs of a new shape take long: kernels are chosen, tuned or compiled, or memory is reserved."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._slow_lines import slow_line
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity

_FEWEST = 2
"""Minimum number of new shapes after the first iteration, which is slow in any program."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the first iterations with each input shape are slower than the others."""
    group = case.slow_groups.get("new_input_shapes")
    if group is None or sum(index > 0 for index in group.indices) < _FEWEST:
        return
    saving = case.saving_in_all(group.extra_s / 2, group.extra_s)
    if saving is None:
        return
    line = slow_line(case, group)
    num_shapes = case.iterations["input_shapes"].nunique()
    places = ", ".join(str(index) for index in group.indices[:6])
    evidence = [f"inputs have {num_shapes} different shapes; the {len(group.indices)} iterations with a new shape "
                f"(iterations {places}) take {quantity(group.slow_s, 's')}, the others "
                f"{quantity(group.typical_s, 's')}"]
    if line is not None:
        evidence.append(f"most of their samples are at {line.place} in {line.function}")
    yield Finding(
        "the first iteration with each new input shape is slow: kernels are tuned or compiled for it",
        "use few fixed shapes: pad or bucket the inputs, and pass drop_last=True to the DataLoader; or set "
        "torch.backends.cudnn.benchmark = False, or torch.compile(model, dynamic=True), where the program uses them",
        saving, tuple(evidence), place=line.place if line else None, phase=group.phase, setting="input shapes")
