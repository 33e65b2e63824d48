"""Phase marks: where an iteration's time goes, by the host's clock and, on CUDA, by events on the device.

A phase is the stretch between entering and leaving its mark. Phases do not overlap, and `other` is what is left of the
iteration, so that together they are its wall time by construction.
"""

from collections import defaultdict
from time import perf_counter_ns
from typing import Any, Self

import torch

from charact.record.schema import PHASES


class _Span:
    """Context manager that stamps its own start and end; one object a phase, entered again and again."""

    __slots__ = ("_name", "_open", "_stamp", "_stamps")

    def __init__(self, name: str, stamps: list[tuple[str, Any, Any]], stamp: Any) -> None:
        self._name, self._stamps, self._stamp = name, stamps, stamp

    def __enter__(self) -> None:
        self._open = self._stamp()

    def __exit__(self, *_: object) -> None:
        self._stamps.append((self._name, self._open, self._stamp()))


class HostPhases:
    """Phase marks by the host's monotonic clock. Two clock reads and a list append a phase, well under 1 µs each.

    Use it as `Loop.iteration`'s mark inside `with phases:`, which spans the iteration.
    """

    def __init__(self) -> None:
        self._stamps: list[tuple[str, Any, Any]] = []
        self._spans = {name: _Span(name, self._stamps, self._stamp) for name in PHASES if name != "other"}
        self._begin: Any = None
        self._finished: list[tuple[Any, Any, list[tuple[str, Any, Any]]]] = []

    def __call__(self, name: str) -> _Span:
        """Mark to enter around a phase."""
        return self._spans[name]

    def __enter__(self) -> Self:
        self._stamps.clear()
        self._begin = self._stamp()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._finished.append((self._begin, self._stamp(), self._stamps.copy()))

    def take(self, *, wait: bool = False) -> list[dict[str, tuple[float, float | None]]]:
        """Finished iterations since the last call: per phase (host_s, device_s), which sum to the wall time.

        Args:
            wait: also those that the device has not ended yet.
        """
        taken = [self._durations(*finished) for finished in self._finished]
        self._finished.clear()
        return taken

    def _stamp(self) -> Any:
        return perf_counter_ns()

    def _durations(self, begin: Any, end: Any, stamps: list[tuple[str, Any, Any]]
                   ) -> dict[str, tuple[float, float | None]]:
        return {phase: (ns / 1e9, None) for phase, ns in _exclusive(begin, end, stamps).items()}


class CudaPhases(HostPhases):
    """Phase marks by CUDA events beside the host's clock.

    An event is recorded on the current stream at each boundary, and read only when the device has passed the
    iteration's last one: nothing inside an iteration synchronizes. A phase's device time runs from the event at its
    start to the event at its end, idle stretches between them included.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._stream = torch.cuda.current_stream(device)
        self._free: list[torch.cuda.Event] = []

    def take(self, *, wait: bool = False) -> list[dict[str, tuple[float, float | None]]]:
        """As in `HostPhases`; without `wait` only the iterations that the device has ended."""
        if wait:
            self._stream.synchronize()
        num_done = 0
        while num_done < len(self._finished) and self._finished[num_done][1][1].query():
            num_done += 1
        taken = [self._durations(*finished) for finished in self._finished[:num_done]]
        del self._finished[:num_done]
        return taken

    def _stamp(self) -> tuple[int, torch.cuda.Event]:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return perf_counter_ns(), event

    def _durations(self, begin: Any, end: Any, stamps: list[tuple[str, Any, Any]]
                   ) -> dict[str, tuple[float, float | None]]:
        host = _exclusive(begin[0], end[0], [(name, a[0], b[0]) for name, a, b in stamps])

        def since_begin_ms(stamp: tuple[int, torch.cuda.Event]) -> float:
            return float(begin[1].elapsed_time(stamp[1]))

        # Every moment is taken since one common event, so that rounding cannot make phases overlap.
        device = _exclusive(0.0, since_begin_ms(end),
                            [(name, since_begin_ms(a), since_begin_ms(b)) for name, a, b in stamps])
        self._free += [begin[1], end[1], *(event for _, a, b in stamps for event in (a[1], b[1]))]
        return {phase: (host[phase] / 1e9, device[phase] / 1e3) for phase in host}


def phases_for(device: torch.device) -> HostPhases:
    """Phase marks that fit a device."""
    return CudaPhases(device) if device.type == "cuda" else HostPhases()


def _exclusive(begin: float, end: float, stamps: list[tuple[str, float, float]]) -> dict[str, float]:
    """Time per phase, with `other` for what is left; a phase that is entered twice is summed."""
    durations: dict[str, float] = defaultdict(float)
    reached = begin
    for name, opened, closed in stamps:
        assert reached <= opened <= closed <= end, "phases overlap"
        durations[name] += closed - opened
        reached = closed
    durations["other"] = end - begin - sum(durations.values())
    return dict(durations)
