"""Messages about parts of a program that could not be recorded, each with a remedy. No torch in here."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from charact.core.timeline import Interval, Iteration
from charact.core.units import share
from charact.measure.script.spans.frame_samples import Samples

FULL = "the record was full before the program ended: choose the recorded iterations with --skip and --iterations"
LATE = ("{:,} iterations of {} are in no case, since the first of them began after the event log was full: let one run "
        "before the first 60,000 iterations have ended")
MIXED = ("no call between two backwards was recorded, since modules and optimizers are called inside a compiled "
         "function: that time counts as other; name its phases with a Profiler's phase()")
WHOLE = ("a function was compiled as a whole: its loss counts as forward, and an update in it as other; run without "
         "torch.compile to separate them")
NO_LOADER = "no DataLoader was used: creating batches counts as other; record it with a Profiler's iterate()"
NO_FETCH = ("the iterations fetch nothing from a DataLoader: creating batches counts as other; record it with a "
            "Profiler's iterate()")
BY_HAND = ("weights are updated without an optimizer, and batches created without a DataLoader: both count as other; "
           "name them with a Profiler's phase()")
BETWEEN = "{} of a typical iteration lies between {} and {}, and counts as other"
AT_END = "{} of a typical iteration lies at its end, after {}, and counts as other"
SCATTERED = ("{} of the iterations' time counts as other, in places that take less than 2 % each, or only in some "
             "iterations")
NAME_IT = "name it with a Profiler's phase()"
SAMPLED = "most of it is in {}"
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
"""Share of a typical iteration between two phases, or at its end, from which it is reported."""
_SCATTERED_FRAC = 0.05
"""Share of the time in other gaps from which it is reported."""
_END = ""
"""Stands for the phase after the last one."""


def blind_spots(iterations: Sequence[Iteration], *, compiled_whole: bool, full: bool, any_loader: bool,
                inferences: Sequence[Iteration] = (), samples: Samples | None = None) -> list[str]:
    """Return messages about parts of a case that could not be recorded.

    Its iterations (at least one) are all training or all inference. `compiled_whole`: anything was compiled outside of
    all spans. `full`: the event log reached its limit. `any_loader`: the program fetched anything from a DataLoader.
    `inferences` are those of the whole program; stack samples may show what ran between two phases.
    """
    spots = [FULL] if full else []
    if not iterations[0].training:
        return spots
    intervals = [interval for iteration in iterations for interval in iteration.intervals]
    phases = {interval.phase for interval in intervals}
    if not phases & {"forward", "update"}:
        spots.append(MIXED)
    elif compiled_whole and not any(each.phase == "forward" and each.owner for each in intervals):
        spots.append(WHOLE)
    wall_ns = sum(each.duration_ns for each in iterations)
    in_phases_ns = sum(each.duration_ns for each in intervals if each.phase != "other")
    if "data" not in phases and MIXED not in spots and wall_ns - in_phases_ns > _MISSING_FRAC * wall_ns:
        spots.append(BY_HAND if "update" not in phases else NO_FETCH if any_loader else NO_LOADER)
    if MIXED not in spots:
        spots += _gaps_without_phase(iterations, samples, any_reason=bool(spots))
    in_order = sorted([*iterations, *inferences], key=lambda iteration: iteration.start_ns)
    num_after_predictions = sum(
        after.training and not before.training and all(interval.phase != "data" for interval in before.intervals)
        for before, after in pairwise(in_order))
    if 2 * num_after_predictions > len(iterations):
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


def _gaps_without_phase(iterations: Sequence[Iteration], samples: Samples | None, *, any_reason: bool) -> list[str]:
    """Return messages about gaps that are long in a typical iteration, and about all others if they take long."""
    gaps: dict[tuple[str, str], list[list[Interval]]] = defaultdict(list)
    """Gaps of each iteration, by the phases before and after; none at its start."""
    for iteration in iterations:
        of_iteration: dict[tuple[str, str], list[Interval]] = defaultdict(list)
        end = Interval(_END, iteration.end_ns, iteration.end_ns, start_device_ns=iteration.end_device_ns)
        for before, after in pairwise([*iteration.intervals, end]):
            of_iteration[before.phase, after.phase].append(Interval(
                "", before.end_ns, after.start_ns, 0, before.end_device_ns, after.start_device_ns))
        for phases, spans in of_iteration.items():
            gaps[phases].append(spans)
    messages: list[str] = []
    typical_ns = median(each.duration_ns for each in iterations)
    rest: list[Interval] = []
    for (phase_before, phase_after), by_iteration in gaps.items():
        lengths_ns = [sum(gap.duration_ns for gap in each) for each in by_iteration]
        gap_ns = median(lengths_ns + [0] * (len(iterations) - len(lengths_ns)))
        every = [gap for each in by_iteration for gap in each]
        if gap_ns <= _BETWEEN_FRAC * typical_ns:
            rest += every
            continue
        place, size = _most_frequent(every, samples), share(gap_ns / typical_ns)
        if phase_after != _END:
            messages.append(f"{BETWEEN.format(size, phase_before, phase_after)}: {place or NAME_IT}")
        elif place or not any_reason:  # such as the creation of the next batch
            messages.append(f"{AT_END.format(size, phase_before)}: {place or NAME_IT}")
    rest_ns, wall_ns = sum(gap.duration_ns for gap in rest), sum(each.duration_ns for each in iterations)
    place = _most_frequent(rest, samples)
    if rest_ns > _SCATTERED_FRAC * wall_ns and (place or not any_reason):
        messages.append(f"{SCATTERED.format(share(rest_ns / wall_ns))}: {place or NAME_IT}")
    return messages


def _most_frequent(gaps: Sequence[Interval], samples: Samples | None) -> str | None:
    place = None if samples is None else samples.most_frequent(sorted(gaps, key=lambda gap: gap.start_ns))
    return None if place is None else SAMPLED.format(place)
