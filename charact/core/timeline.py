"""Intervals with a phase: their sums with the rest, the phase at a moment, and the phases of gaps. Imports no torch.

All moments are in one unit of the caller's, such as nanoseconds of the host's clock.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Moment = TypeVar("Moment", int, float)
Key = TypeVar("Key", bound=Hashable)

Durations = dict[str, tuple[float, float | None]]
"""Time of each phase of an iteration on the host and on the device (s); None without device times."""


def sums(spans: Iterable[tuple[Moment, Moment, Key]]) -> dict[Key, Moment]:
    """Return the length of spans by phase."""
    lengths: dict[Any, Any] = defaultdict(int)
    for start, end, phase in spans:
        lengths[phase] += end - start
    return dict(lengths)


def with_rest(lengths: Mapping[Key, Moment], whole: Moment, rest: Any = "other") -> dict[Key, Moment]:
    """Return lengths by phase, with what the others leave of the whole as `rest`, which replaces an earlier one."""
    return {**lengths, rest: whole - sum(length for phase, length in lengths.items() if phase != rest)}


def iteration_rows(iterations: Iterable[Durations]) -> list[dict[str, Any]]:
    """Return rows of the table `iterations`."""
    return [{"iteration": number, "phase": phase, "host_s": host_s, "device_s": device_s}
            for number, durations in enumerate(iterations) for phase, (host_s, device_s) in durations.items()]


def total(iterations: Iterable[Durations]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sums of each phase over iterations (s): on the host, and on the device if it has times there."""
    host_s: dict[str, float] = defaultdict(float)
    device_s: dict[str, float] = defaultdict(float)
    for durations in iterations:
        for phase, (of_host, of_device) in durations.items():
            host_s[phase] += of_host
            if of_device is not None:
                device_s[phase] += of_device
    return host_s, device_s


def phase_at(spans: Sequence[tuple[float, float, str]], moment: float) -> str | None:
    """Return the phase at a moment; None between spans.

    Args:
        spans: in order of their starts, without overlap.
        moment: in the unit of the starts and ends.
    """
    index = bisect_right(spans, moment, key=lambda span: span[0]) - 1
    return spans[index][2] if index >= 0 and moment < spans[index][1] else None


def with_gaps(spans: Sequence[tuple[Moment, Moment, str]]) -> list[tuple[Moment, Moment, str]]:
    """Return the spans of an iteration by time, with the gaps between them that have an unambiguous phase.

    Between the end of a forward and the start of its backward, a loss is computed by hand. Without a marked forward, as
    in a function that was compiled whole, the gap before the loss, or before the backward, is the forward.
    """
    filled: list[tuple[Moment, Moment, str]] = []
    gaps: list[tuple[Moment, Moment, str]] = []  # used if a backward follows
    in_gap, reached = "forward", None
    for start, end, name in sorted(spans):
        if reached is not None and reached < start:
            gaps.append((reached, start, in_gap))
        if name == "backward":
            filled += gaps
        if name in ("forward", "backward", "loss"):
            in_gap = "loss"
        if name in ("forward", "backward") or (in_gap == "forward" and name in ("data", "update")):
            gaps = []
        filled.append((start, end, name))
        reached = end
    return sorted(filled)
