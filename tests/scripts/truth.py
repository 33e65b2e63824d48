"""What a script with known sleeps tells of itself: the time of each part of each iteration, by its own clock.

The file that TRUTH names then holds one entry an iteration: its mode, its wall time and its parts.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Truth:
    """Clock of a script. Parts may nest; the time of an inner one is not the outer one's."""

    def __init__(self) -> None:
        self._iterations: list[dict[str, Any]] = []
        self._inner_s = [0.0]

    def begin(self, mode: str = "train", at_s: float | None = None) -> None:
        """An iteration begins here, and so the one before ends."""
        now_s = time.perf_counter() if at_s is None else at_s
        self._end(now_s)
        self._iterations.append({"mode": mode, "begin_s": now_s, "parts": []})

    @contextmanager
    def __call__(self, phase: str, part: str | None = None) -> Iterator[None]:
        """Measure a part of the present iteration."""
        start_s = time.perf_counter()
        self._inner_s.append(0.0)
        try:
            yield
        finally:
            elapsed_s = time.perf_counter() - start_s
            self._add(phase, part, elapsed_s - self._inner_s.pop())
            self._inner_s[-1] += elapsed_s

    def batches(self, loader: Iterable[Any], mode: str = "train", *, every: int = 1) -> Iterator[Any]:
        """Batches of a loader; with every so many of them an iteration begins."""
        start_s = time.perf_counter()
        iterator, number = iter(loader), 0
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self._add("data", None, time.perf_counter() - start_s)  # such as for ending its workers
                return
            if number % every == 0:
                self.begin(mode, start_s)
            self._add("data", None, time.perf_counter() - start_s)
            yield batch
            number, start_s = number + 1, time.perf_counter()

    def write(self) -> None:
        """The last iteration has ended; write all."""
        self._end(time.perf_counter())
        with open(os.environ["TRUTH"], "w", encoding="utf-8") as file:
            json.dump(self._iterations, file)

    def _add(self, phase: str, part: str | None, seconds: float) -> None:
        self._iterations[-1]["parts"].append({"phase": phase, "part": part, "seconds": seconds})

    def _end(self, now_s: float) -> None:
        if self._iterations:
            self._iterations[-1].setdefault("wall_s", now_s - self._iterations[-1]["begin_s"])
