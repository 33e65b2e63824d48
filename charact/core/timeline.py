"""Iterations and their phases: sums with the rest, the phase at a moment, and rows of tables. Imports no torch.

The loop of `charact profile`, ranks, watched programs and traces make iterations; their tables come from here.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any, TypeVar

Moment = TypeVar("Moment", int, float)
Key = TypeVar("Key", bound=Hashable)


class Mode(IntEnum):
    """How a model's forward ran."""

    GRADIENTS = auto()
    NO_GRADIENTS = auto()
    METHOD = auto()
    """As a method of the model without gradients, such as `generate`."""


class _Timed:
    """Something with a start and an end on the host's clock, and on the device's unless these are None."""

    __slots__ = ()
    start_ns: int
    end_ns: int
    start_device_ns: int | None
    end_device_ns: int | None

    @property
    def host_ns(self) -> int:
        """Duration on the host (ns)."""
        return self.end_ns - self.start_ns

    @property
    def device_ns(self) -> int | None:
        """Duration on the device (ns); None without device times."""
        if self.start_device_ns is None or self.end_device_ns is None:
            return None
        return self.end_device_ns - self.start_device_ns

    @property
    def duration_ns(self) -> int:
        """Duration (ns): on the device if it has times, else on the host."""
        return self.host_ns if self.device_ns is None else self.device_ns


@dataclass(frozen=True, slots=True)
class Interval(_Timed):
    """A part of an iteration: its phase, its start and its end.

    `owner` is the ID of a watched program's model, optimizer or loader; 0 for none. The owner of a loss or a backward
    is the optimizer that steps next, whichever model's gradients it computes. `inferred`: a rule determined the phase.
    `compiling`: PyTorch compiled; the phase is `other`. `inside` is the phase that a communication interrupts; None if
    it is between phases. `mode` is that of a forward. `evidence`: how the phase was recognized. `begins`: a call
    begins with it, rather than goes on after an inner one.
    """

    phase: str
    start_ns: int
    end_ns: int
    owner: int = 0
    start_device_ns: int | None = None
    end_device_ns: int | None = None
    inferred: bool = False
    compiling: bool = False
    inside: str | None = None
    mode: Mode = Mode.GRADIENTS
    evidence: str = ""
    begins: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class TokenStep:
    """Part of a watched program's generation: one that reads the prompts, or one that decodes a token of each request.

    `mode` is one of `schema.GENERATING_MODES`. `number` is the index of the generation in the program. `prompt_size`:
    tokens of a prompt; `num_requests`: requests at once; `context`: tokens of each request that have been read by the
    step's end; `output_size`: tokens that each request gets of the generation. `has_cache`: a decoding step reads only
    the new token.
    """

    mode: str
    number: int
    prompt_size: int
    num_requests: int
    context: int
    output_size: int
    has_cache: bool


@dataclass(frozen=True, slots=True)
class Iteration(_Timed):
    """An iteration: its start, its end, and intervals in order and without overlap; the rest is `other`.

    `step` is only in an iteration that generates.
    """

    start_ns: int
    end_ns: int
    intervals: list[Interval] = field(default_factory=list)
    start_device_ns: int | None = None
    end_device_ns: int | None = None
    training: bool = True
    step: TokenStep | None = None

    @property
    def wall_s(self) -> float:
        """Duration (s): on the device if it has times, else on the host."""
        return self.duration_ns / 1e9

    def phase_at(self, moment_ns: int) -> str:
        """Return the phase at a moment of the iteration; `other` between its intervals."""
        interval = at(self.intervals, moment_ns)
        return "other" if interval is None else interval.phase


Spanned = TypeVar("Spanned", Interval, Iteration)


def at(spans: Sequence[Spanned], moment_ns: int) -> Spanned | None:
    """Return the interval or iteration at a moment, of several in order and without overlap; None between them."""
    index = bisect_right(spans, moment_ns, key=lambda span: span.start_ns) - 1
    return spans[index] if index >= 0 and moment_ns < spans[index].end_ns else None


def phase_at(spans: Sequence[tuple[float, float, str]], moment: float) -> str | None:
    """Return the phase at a moment, from starts, ends and phases in order and without overlap; None between spans."""
    index = bisect_right(spans, moment, key=lambda span: span[0]) - 1
    return spans[index][2] if index >= 0 and moment < spans[index][1] else None


def sums(spans: Iterable[tuple[Moment, Moment, Key]]) -> dict[Key, Moment]:
    """Return the length of spans (start, end, phase) by phase."""
    lengths: dict[Any, Any] = defaultdict(int)
    for start, end, phase in spans:
        lengths[phase] += end - start
    return dict(lengths)


def with_rest(lengths: Mapping[Key, Moment], whole: Moment, rest: Any = "other") -> dict[Key, Moment]:
    """Return lengths by phase, with what the others leave of the whole as `rest`, which replaces an earlier one."""
    return {**lengths, rest: whole - sum(length for phase, length in lengths.items() if phase != rest)}


def host_and_device_ns(iteration: Iteration, key: Callable[[Interval], Key], rest: Key
                       ) -> dict[Key, tuple[int, int | None]]:
    """Return the durations (ns) of an iteration on the host and on the device, by a key of its intervals.

    `rest` is the key of the remaining time. Device times are None unless all intervals have them.
    """
    host_ns = with_rest(sums((each.start_ns, each.end_ns, key(each)) for each in iteration.intervals),
                        iteration.host_ns, rest)
    lengths = [(0, each.device_ns, key(each)) for each in iteration.intervals if each.device_ns is not None]
    if iteration.device_ns is None or len(lengths) < len(iteration.intervals):
        return {one: (ns, None) for one, ns in host_ns.items()}
    device_ns = with_rest(sums(lengths), iteration.device_ns, rest)
    return {one: (ns, device_ns[one]) for one, ns in host_ns.items()}


def iteration_rows(iterations: Iterable[Iteration], part_of: Callable[[Interval], str | None] = lambda _: None
                   ) -> list[dict[str, Any]]:
    """Return rows of the table `iterations`: one per phase and part, and `other` for the remaining time.

    `part_of` returns the name of an interval's part of its phase; None if the phase has no parts.
    """
    def key(interval: Interval) -> tuple[str, str | None]:
        return interval.phase, part_of(interval)

    rest: tuple[str, str | None] = ("other", None)
    return [{"iteration": number, "phase": phase, "part": part, "host_s": host_ns / 1e9,
             "device_s": None if device_ns is None else device_ns / 1e9}
            for number, iteration in enumerate(iterations)
            for (phase, part), (host_ns, device_ns) in host_and_device_ns(iteration, key, rest).items()]


def total_s(iterations: Iterable[Iteration]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sums of each phase over iterations (s): on the host, and on the device if it has times there."""
    host_s: dict[str, float] = defaultdict(float)
    device_s: dict[str, float] = defaultdict(float)
    for row in iteration_rows(iterations):
        host_s[row["phase"]] += row["host_s"]
        if row["device_s"] is not None:
            device_s[row["phase"]] += row["device_s"]
    return host_s, device_s
