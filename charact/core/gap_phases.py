"""The gaps between recorded phases of an iteration: the rule by which a gap belongs to a phase. Imports no torch."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from charact.core.timeline import Moment


def gap_phases(steps: Sequence[tuple[str | None, bool]], first: str | None = "forward"
               ) -> list[tuple[str, int] | None]:
    """Return the phase of the gap before each step of an iteration, and the index of the backward that follows it.

    None if no rule applies:

    - After a forward, or another backward, until a backward: the loss, computed by hand. Not after a recorded loss:
      then the program does other work.
    - Before the loss or the backward, if no forward was recorded since the last fetch or update (a function that was
      compiled as a whole): the forward.

    Args:
        steps: role of each step, and whether it begins there rather than continues. The roles are `forward`, `loss`,
            `backward`, `restart` (a fetch or an update), `apart` (no part of an unrecorded forward), and None.
        first: phase of the first gap, if a backward follows.
    """
    phases: list[tuple[str, int] | None] = [None] * len(steps)
    gaps: list[tuple[int, str]] = []  # their phases if a backward follows
    phase, has_loss = first, False
    for index, (role, begins) in enumerate(steps):
        if phase is not None:
            gaps.append((index, phase))
        if role == "backward":
            for gap, in_gap in gaps if begins else []:
                phases[gap] = in_gap, index
            gaps, phase = [], None if has_loss else "loss"
        elif role == "forward":
            gaps = []
            if begins:
                phase, has_loss = "loss", False
        elif role == "restart":
            gaps, phase, has_loss = [], "forward", False
        elif role == "loss":
            phase, has_loss = None, True
        elif role == "apart" and phase == "forward":
            gaps = []
    return phases


_ROLES = {"data": "apart", "update": "apart", "forward": "forward", "loss": "loss", "backward": "backward"}


def with_gaps(spans: Iterable[tuple[Moment, Moment, str]]) -> list[tuple[Moment, Moment, str]]:
    """Return spans of phases by time, with the gaps between them that have an unambiguous phase, see `gap_phases`."""
    filled = sorted(spans)
    phases = gap_phases([(_ROLES.get(phase), True) for _, _, phase in filled])
    filled += [(before[1], after[0], gap[0]) for (before, after), gap in zip(pairwise(filled), phases[1:], strict=False)
               if gap is not None and before[1] < after[0]]
    return sorted(filled)
