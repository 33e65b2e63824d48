"""An independent reader of traces: device times by brute force from the JSON, with rational numbers."""

import gzip
import json
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

Span = tuple[Fraction, Fraction]
_KERNELS = ("kernel", "Kernel")
_COPIES = ("gpu_memcpy", "Memcpy")
_FILLS = ("gpu_memset", "Memset")


class ReadTrace:
    """The device's events of a trace, with exact times in microseconds."""

    def __init__(self, path: Path) -> None:
        text = path.read_bytes()
        whole = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text, parse_float=Fraction,
                           parse_int=Fraction)
        self.events = [event for event in (whole if isinstance(whole, list) else whole["traceEvents"])
                       if event.get("ph") == "X" and "ts" in event and "dur" in event]

    def spans(self, *categories: str, names: Iterable[str] | None = None, without: bool = False) -> list[Span]:
        """Return the spans of events of categories, with a text of `names` in their names, or without all of them."""
        return [(event["ts"], event["ts"] + event["dur"]) for event in self.events if event.get("cat") in categories
                and (names is None or any(name in event["name"].lower() for name in names) != without)]

    def device(self) -> list[Span]:
        """Return the spans of all work of the device."""
        return self.spans(*_KERNELS, *_COPIES, *_FILLS)

    def kernels(self) -> list[Span]:
        """Return the spans of kernels."""
        return self.spans(*_KERNELS)

    def steps(self) -> list[dict[str, Any]]:
        """Return the annotations of iterations."""
        return [event for event in self.events if event["name"].startswith("ProfilerStep#")]


def covered_us(spans: Iterable[Span], start: Fraction | None = None, end: Fraction | None = None) -> float:
    """Return how long at least one span runs, between two times if they are given.

    Every elementary interval between two edges is looked at on its own.
    """
    clipped = [(begin if start is None else max(begin, start), until if end is None else min(until, end))
               for begin, until in spans]
    edges = sorted({edge for span in clipped for edge in span})
    return float(sum((after - before for before, after in pairwise(edges)
                      if any(begin <= before and after <= until for begin, until in clipped)), Fraction()))


def num_gaps(spans: Iterable[Span]) -> int:
    """Return the number of times between spans in which none runs."""
    spans = list(spans)
    edges = sorted({edge for span in spans for edge in span})
    free = [not any(begin <= before and after <= until for begin, until in spans)
            for before, after in pairwise(edges)]
    return sum(is_free for is_free in free)


def innermost_us(spans: Iterable[tuple[Span, str]], start: Fraction, end: Fraction) -> dict[str, float]:
    """Return the time of each phase between two times, from nested spans: at each time the innermost one counts.

    A forward or loss directly within a backward is backward. Every elementary interval is looked at on its own.
    """
    spans = list(spans)
    edges = sorted({start, end, *(edge for span, _ in spans for edge in span if start < edge < end)})
    lengths: dict[str, Fraction] = {}
    for before, after in pairwise(edges):
        around = sorted((begin, -until, phase) for (begin, until), phase in spans if begin <= before and after <= until)
        phase = "other"
        for _, _, inner in around:
            phase = "backward" if phase == "backward" and inner in ("forward", "loss") else inner
        lengths[phase] = lengths.get(phase, Fraction()) + after - before
    return {phase: float(length) for phase, length in lengths.items()}
