"""Counter sources made for tests, which give what they are told to and fail where they are told to."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from charact.measure.counters._support.protocol import Counter, Found, Unavailable, UnavailableError


def fine() -> None:
    """Go on."""


def refuse() -> None:
    raise UnavailableError("somebody else holds it", "ask them")


def break_down() -> None:
    raise ValueError("no such\nthing")


class Made:
    """A source that is read along: of each sample it tells the number, over the whole how many there were.

    Args:
        name: of the source.
        period_s: between samples; None for none.
        opening: called when it is opened.
        sampling: called at each sample, by its number from 0.
        closing: called at the close.
        here: why it gives nothing from the start, if it does.
    """

    cost = "none"
    reads: Literal["host", "device"] = "host"
    taken: Literal["along", "trace", "own pass"] = "along"
    tried_on: str | None = None
    counters = (Counter("num_samples", "samples so far", "measured", "test"),)

    def __init__(self, name: str = "made", *, period_s: float | None = 0.005, opening: Callable[[], None] = fine,
                 sampling: Callable[[int], None] = lambda _: None, closing: Callable[[], None] = fine,
                 here: Unavailable | None = None, devices: frozenset[str] = frozenset({"cpu", "cuda"})) -> None:
        self.name, self.period_s, self.devices = name, period_s, devices
        self._opening, self._closing, self._here = opening, closing, here
        self._sampling = sampling
        self.num_open = 0
        self.missing: Mapping[str, str] = {"num_lost": "not on this device"}
        self.sampled_ns: list[int] = []

    def available(self) -> Unavailable | None:
        return self._here

    def open(self, _: torch.device) -> "Made":
        """It is its own reading."""
        self._opening()
        self.num_open += 1
        return self

    def sample(self) -> Mapping[str, float]:
        """Count the samples."""
        self._sampling(len(self.sampled_ns))
        self.sampled_ns.append(time.perf_counter_ns())
        return {"num_samples": len(self.sampled_ns)}

    def close(self) -> Mapping[str, float]:
        """End counting."""
        self.num_open -= 1
        self._closing()
        return {"num_samples": len(self.sampled_ns)}


class MadePass(Made):
    """A source that runs some iterations of its own."""

    taken: Literal["along", "trace", "own pass"] = "own pass"
    tried_on: str | None = None

    def take(self, loop: Any) -> Found:
        """Run an iteration."""
        self._opening()
        loop.iteration(torch.profiler.record_function)
        return Found([{"counter": "num_samples", "value": 1.0, "device": "cpu", "phase": "forward"}],
                     {"num_lost": "too old"}, {"num_iterations": 1})
