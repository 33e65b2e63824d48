"""Times of an iteration and of its phases, computed fast from its slices. No torch in here.

Most iterations of a program have the same kinds of slices in the same order. Which phase each slice and each gap
between them belongs to is computed once for each order, by `iteration_of`.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from charact.measure.script.spans.iterations import Segment
from charact.measure.script.spans.recorder import Kind

_MOST_ORDERS = 1000
"""Largest number of orders that are remembered."""


class IterationTimes(NamedTuple):
    """Times of an iteration (ns), on the device if it has times there, else on the host.

    The phases sum to the wall time, by `other`. `fetches`: it has a fetch. `fetches_first`: before any backward.
    """

    training: bool
    wall_ns: int
    phase_ns: dict[str, int]
    fetches: bool
    fetches_first: bool


class Order(NamedTuple):
    """Phases of an iteration's parts: each with the indices of its start and its end among the times of the slices."""

    parts: list[tuple[str, int, int]]
    start: int
    end: int
    fetches: bool
    fetches_first: bool


class PhaseTimes:
    """Computes times of iterations; remembers the orders of slices that it has seen."""

    def __init__(self) -> None:
        self._orders: dict[Any, Order] = {}

    def of(self, segment: Segment) -> IterationTimes:
        """Return the times of an iteration. Device times need an event at both ends of each slice."""
        slices, after, order = segment.slices, segment.after, self.order(segment)
        times: list[Any] = []
        for each in slices:
            times += (each.start_ns, each.end_ns)
        if after is not None:
            times.append(after.start_ns)
        if slices[0].end_event is not None:
            device: list[Any] = []
            for each in slices:
                device += (each.start_event, each.end_event)
            if after is not None:
                device.append(after.start_event)
            if None not in device:
                times = device
        wall_ns = rest_ns = times[order.end] - times[order.start]
        phase_ns: dict[str, int] = {}
        for phase, begin, end in order.parts:
            length_ns = times[end] - times[begin]
            rest_ns -= length_ns
            phase_ns[phase] = phase_ns.get(phase, 0) + length_ns
        phase_ns["other"] = rest_ns
        return IterationTimes(segment.training, wall_ns, phase_ns, order.fetches, order.fetches_first)

    def order(self, segment: Segment) -> Order:
        """Return the order of an iteration's slices."""
        after = segment.after
        key = (segment.training, segment.manual_update, None if after is None else after.kind is Kind.END,
               *[(each.kind, each.grad, each.begins, each.ends, each.phase) for each in segment.slices])
        order = self._orders.get(key)
        if order is None:
            if len(self._orders) >= _MOST_ORDERS:
                self._orders.clear()
            order = self._orders[key] = _order(segment)
        return order


def _order(segment: Segment) -> Order:
    """Return the order of an iteration's slices: that of an iteration whose times are 0, 1, 2 and so on."""
    slices = [replace(each, start_ns=2 * place, end_ns=2 * place + 1, start_event=None, end_event=None)
              for place, each in enumerate(segment.slices)]
    after = segment.after and replace(segment.after, start_ns=2 * len(slices), start_event=None, end_event=None)
    iteration = segment._replace(slices=slices, after=after).iteration()
    kinds = [each.kind for each in slices if each.kind in (Kind.FETCH, Kind.BACKWARD)]
    return Order([(each.phase, each.start_ns, each.end_ns) for each in iteration.intervals if each.phase != "other"],
                  iteration.start_ns, iteration.end_ns, Kind.FETCH in kinds, kinds[:1] == [Kind.FETCH])
