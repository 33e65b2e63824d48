"""Messages about parts of a program that could not be recorded, each with a remedy. No torch in here."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from charact.core.units import share
from charact.measure.script.spans.iterations import Iteration
from charact.measure.script.spans.recorder import Kind, Slice

FULL = "the record was full before the program ended: choose the recorded iterations with --skip and --iterations"
MIXED = ("no call between two backwards was recorded, since modules and optimizers are called inside a compiled "
         "function: that time counts as other; name its phases with a Profiler's phase()")
WHOLE = ("a function was compiled as a whole: its loss counts as forward, and an update in it as other; run without "
         "torch.compile to separate them")
NO_LOADER = "no DataLoader was used: creating batches counts as other; record it with a Profiler's iterate()"
NO_FETCH = ("the iterations fetch nothing from a DataLoader: creating batches counts as other; record it with a "
            "Profiler's iterate()")
BY_HAND = ("weights are updated without an optimizer, and batches created without a DataLoader: both count as other; "
           "name them with a Profiler's phase()")
BETWEEN = "{} of the time lies between {} and {}, and counts as other; name it with a Profiler's phase()"
PREDICTED = ("forwards without gradients between training iterations count as inference: if the training uses their "
             "outputs, record each batch with a Profiler's iterate()")
NO_DEVICE_TIMES = ("device times are n/a (no timed events on {}: {}): phases hold the host's times, which are those of "
                   "launching the work")
CHILDREN = ("{} with PyTorch {} not recorded: start charact run in each (torchrun --no-python charact run train.py), "
            "or enter a charact.Profiler in the function that it runs")
THREADS = "training in {} is not recorded: enter a charact.Profiler there"
_MISSING_FRAC = 0.02
"""Share of the time outside of all phases from which a missing phase is reported."""
_BETWEEN_FRAC = 0.02
"""Share of the time between two phases from which it is reported."""


def blind_spots(iterations: Sequence[Iteration], *, compiled_whole: bool, full: bool, any_loader: bool,
                inferences: Sequence[Iteration] = ()) -> list[str]:
    """Return messages about parts of a case that could not be recorded.

    Args:
        iterations: at least one, all of them training or all inference.
        compiled_whole: whether anything was compiled outside of all spans.
        full: whether the event log reached its limit.
        any_loader: whether the program fetched anything from a DataLoader.
        inferences: the program's iterations of inference.
    """
    spots = [FULL] if full else []
    if not iterations[0].training:
        return spots
    intervals = [one for iteration in iterations for one in iteration.intervals]
    phases = {one.phase for one in intervals}
    if not phases & {"forward", "update"}:
        spots.append(MIXED)
    elif compiled_whole and not any(one.phase == "forward" and one.owner for one in intervals):
        spots.append(WHOLE)
    wall_ns = sum(one.end_ns - one.start_ns for one in iterations)
    in_phases_ns = sum(one.end_ns - one.start_ns for one in intervals if one.phase != "other")
    if "data" not in phases and MIXED not in spots and wall_ns - in_phases_ns > _MISSING_FRAC * wall_ns:
        spots.append(BY_HAND if "update" not in phases else NO_FETCH if any_loader else NO_LOADER)
    for (before, after), gap_ns in _gaps_ns(iterations).items() if MIXED not in spots else ():
        if gap_ns > _BETWEEN_FRAC * wall_ns:
            spots.append(BETWEEN.format(share(gap_ns / wall_ns), before, after))
    # Those with a batch of their own are evaluations.
    predicted_ns = {one.end_ns for one in inferences if all(part.phase != "data" for part in one.intervals)}
    if 2 * sum(one.start_ns in predicted_ns for one in iterations) > len(iterations):
        spots.append(PREDICTED)
    return spots


def unwatched(num_children: int, num_threads: int) -> list[str]:
    """Return messages about child processes with PyTorch, and other threads that train."""
    messages = []
    if num_children:
        messages.append(CHILDREN.format(*(("1 child process", "was") if num_children == 1
                                          else (f"{num_children} child processes", "were"))))
    if num_threads:
        messages.append(THREADS.format("another thread" if num_threads == 1 else f"{num_threads} other threads"))
    return messages


def _gaps_ns(iterations: Sequence[Iteration]) -> dict[tuple[str, str], int]:
    """Return the time (ns) of `other` between intervals, by the phases before and after it."""
    gaps: dict[tuple[str, str], int] = defaultdict(int)
    for iteration in iterations:
        for before, after in pairwise(iteration.intervals):
            gaps[before.phase, after.phase] += after.start_ns - before.end_ns
    return gaps


def is_compiled_whole(slices: Sequence[Slice]) -> bool:
    """Return whether a compilation began while no span was open: then a function was compiled, not a model."""
    return any(
        one.kind is Kind.COMPILE and (index == 0 or slices[index - 1].ends)
        for index, one in enumerate(slices)
    )
