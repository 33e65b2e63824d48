"""A line of the program's own code takes much of the time outside of PyTorch's calls."""

import re
from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Saving
from charact.analysis.findings._line_text import CREATORS, advice_for
from charact.analysis.findings._watched_case import SampledLine, WatchedCase, is_enough
from charact.core.slow_iterations import slow_limit_s
from charact.core.units import quantity, share
from charact.record.schema import PHASES_IN_PYTORCH

_PHASES = ("other", "forward", "loss", "backward", "update")
_CREATES = re.compile(rf"torch\.({CREATORS}|rand\w*|normal|tensor)\(|one_hot\(")
"""Calls that create tensors; in a forward, those that do not depend on the input can be made once."""
_LONG_FRAC = 0.1
"""Share of the iteration from which a line of a loss, a backward or an update is reported."""


def line(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each function of the program whose own lines take much time."""
    walls_s = case.iterations["wall_s"]
    usual = case.iterations[walls_s <= slow_limit_s(list(walls_s))]
    for phase in _PHASES:
        lines = case.all_lines(phase)
        for group in _by_function([line for line in lines if _may_be_named(case, phase, line)]):
            share_frac = sum(line.share_frac for line in group)
            spent_s = share_frac * case.phase_s[phase]
            most_s = share_frac * max(case.phase_s[phase], usual[f"{phase}_s"].mean())
            saving = case.saving(0.4 * spent_s, most_s + _related_s(case, phase, group, lines))
            if saving is not None:
                yield _of_function(group, phase, saving, f"{case.of_iteration(spent_s)}, "
                                                         f"in {phase}", spent_s)
    between_s = (case.program.between_s or 0.0) + (case.program.after_s or 0.0)
    for group in _by_function(case.all_lines("between")):
        spent_s = sum(line.share_frac for line in group) * between_s
        saving = case.saving_in_all(0.4 * spent_s, spent_s)
        if saving is not None:
            yield _of_function(group, None, saving, f"{share(spent_s / case.program_s)} of the program, between "
                                                    "iterations or after them", spent_s)


def _related_s(case: WatchedCase, phase: str, group: list[SampledLine], lines: list[SampledLine]) -> float:
    """Return the time (s) that a remedy may save besides that of a group of lines of a forward or a loss.

    It is that of the function's other lines outside of layers, and the backward of all of them.
    """
    backward_s = case.phase_s["backward"]
    if phase == "loss":  # the backward in no operator of a layer: half of it if operators are not known
        rows = case.operators[case.operators["phase"] == "backward"]
        in_layers_s = float(rows.loc[rows["layer"].notna(), "time_s"].sum()) if len(rows) else backward_s / 2
        return max(backward_s - in_layers_s, 0.0)
    if phase != "forward":
        return 0.0
    others_frac = sum(line.share_frac for line in lines if line not in group and line.library is None
                      and (line.place.file, line.function) == (group[0].place.file, group[0].function))
    all_frac = others_frac + sum(line.share_frac for line in group)
    return others_frac * case.phase_s["forward"] + all_frac * backward_s


def _may_be_named(case: WatchedCase, phase: str, line: SampledLine) -> bool:
    """Return whether a line can be the cause: not one that only calls layers, a backward or PyTorch's optimizers."""
    if phase in PHASES_IN_PYTORCH:
        return not (line.library or "").startswith("torch.") and _is_long(case, phase, line)
    return phase == "other" or _is_own(line) or (phase == "loss" and line.library is None
                                                 and _is_long(case, phase, line))


def _is_own(line: SampledLine) -> bool:
    """Return whether a line outside of layers waits, reads or creates values, or runs in a loop."""
    text = line.place.text or ""
    if line.library is None and _CREATES.search(text):
        return True
    reads = any(part in text for part in (".item()", ".tolist()", ".numpy()", "np.", "sleep(", "print("))
    # Distributions are no layers: each object of one costs more than the computation on a few elements.
    calls_layers = any(
        call.endswith(".forward") or (call.startswith("torch.") and not call.startswith("torch.distributions."))
        for call in map(str.strip, (line.library or "").split(",")))
    return line.waits or reads or (line.in_loop and not calls_layers)


def _is_long(case: WatchedCase, phase: str, line: SampledLine) -> bool:
    """Return whether a line takes much of the iteration: the program's own lines of a loss or an update take little."""
    return line.share_frac * case.phase_s[phase] > _LONG_FRAC * case.iteration_s


def _by_function(lines: list[SampledLine]) -> list[list[SampledLine]]:
    functions: dict[tuple[str, str], list[SampledLine]] = {}
    for line in lines:
        outermost = line.function.partition(".<locals>")[0]  # a lambda belongs to the function that makes it
        functions.setdefault((line.place.file, outermost), []).append(line)
    return [group for group in functions.values() if is_enough(group)]


def _of_function(lines: list[SampledLine], phase: str | None, saving: Saving, where: str, spent_s: float) -> Finding:
    top = lines[0]
    advice = advice_for(top)
    others = f" and {len(lines) - 1} more line{'s' if len(lines) > 2 else ''}" if len(lines) > 1 else ""
    evidence = (f"it takes {quantity(spent_s, 's')}, {where}: {sum(line.num_samples for line in lines)} samples at "
                f"{top.place}{others}",)
    name = top.place.file if top.function == "<module>" else top.function
    return Finding(f"line {top.place.line} in {name} {advice.does}", advice.remedy, saving, evidence,
                   "high" if top.waiting_frac is not None else "medium", place=top.place, phase=phase)
