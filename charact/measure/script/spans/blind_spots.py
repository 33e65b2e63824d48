"""What of a watched program could not be seen, in words, each with its remedy. No torch in here."""

from collections.abc import Sequence

from charact.measure.script.spans.iterations import Iteration
from charact.measure.script.spans.recorder import Kind, Slice

FULL = "the record was full before the program had ended: --skip and --iterations choose what it holds"
MIXED = ("between two backwards nothing was seen, since no module or optimizer is called outside of a compiled "
         "function: all of that is other, unless a Profiler's phase() names it")
WHOLE = ("a function was compiled as a whole: its loss counts as forward, and an update in it as other; without "
         "torch.compile they are told apart")
NO_LOADER = "no DataLoader was used: making batches is in other, unless a Profiler's iterate() names it"
_MUCH_FRAC = 0.1


def blind_spots(iterations: Sequence[Iteration], *, compiled_whole: bool, full: bool) -> list[str]:
    """What could not be seen of the iterations of a case.

    Args:
        iterations: of one mode.
        compiled_whole: whether anything was compiled outside of all spans.
        full: whether the spool took no more.
    """
    spots = [FULL] if full else []
    if not iterations[0].training:
        return spots
    stretches = [one for iteration in iterations for one in iteration.stretches]
    phases = {one.phase for one in stretches}
    if not phases & {"forward", "update"}:
        spots.append(MIXED)
    elif compiled_whole and not any(one.phase == "forward" and one.owner for one in stretches):
        spots.append(WHOLE)
    wall_ns = sum(one.end_ns - one.start_ns for one in iterations)
    in_phases_ns = sum(one.end_ns - one.start_ns for one in stretches if one.phase != "other")
    if "data" not in phases and MIXED not in spots and wall_ns - in_phases_ns > _MUCH_FRAC * wall_ns:
        spots.append(NO_LOADER)
    return spots


def is_compiled_whole(slices: Sequence[Slice]) -> bool:
    """Whether a compilation began while no span was open: not of a model or a part of one, but of a function."""
    return any(
        one.kind is Kind.COMPILE and (place == 0 or slices[place - 1].ends)
        for place, one in enumerate(slices)
    )
