"""Decoding of a trace's events, with all digits of their times."""

import math
from collections.abc import Iterable

import msgspec

from charact.traces.events import Event, ExactEvent

_EXACT_US = float(1 << 43)
"""From this time on, 100 days, floats in microseconds are more than 1 ns apart."""
_NUM_DIGITS = 3
"""Digits after the point of a time in microseconds with a resolution of 1 ns."""


class EventDecoder:
    """Decodes blocks of events.

    Times are floats, or integers where the file has them. In a trace with times on the clock of the day and a fraction,
    floats are 256 ns apart: its times become decimals. If their fractions have fewer digits than nanoseconds need, the
    file was written from floats, and `resolution_ns` is how far apart its times may be by rounding.
    """

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(list[Event]).decode
        self._is_chosen = False
        self.resolution_ns = 0

    def __call__(self, text: bytes) -> list[Event]:
        """Return the events of a JSON list; errors are those of msgspec."""
        events = self._decode(text)
        if not self._is_chosen and (times := [event.ts for event in events
                                              if isinstance(event.ts, float) and event.dur is not None]):
            self._is_chosen = True
            if any(abs(time_us) >= _EXACT_US for time_us in times):
                self._decode = msgspec.json.Decoder(list[ExactEvent]).decode  # type: ignore[assignment]
                events = self._decode(text)
                self.resolution_ns = _resolution_ns(events)
        return events


def _resolution_ns(events: Iterable[Event]) -> int:
    times = [event.ts for event in events if isinstance(event, ExactEvent) and event.ts and event.dur is not None]
    digits = max((-int(time_us.as_tuple().exponent) for time_us in times), default=_NUM_DIGITS)
    return 0 if digits >= _NUM_DIGITS else round(1.5e3 * math.ulp(float(max(times))))
