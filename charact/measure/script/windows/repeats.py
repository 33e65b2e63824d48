"""Iterations that repeat the one before, found and timed together, which is faster. No torch in here."""

from typing import TYPE_CHECKING, Any

from charact.measure.script.spans.event_log import NO_TIME, packed
from charact.measure.script.spans.recorder import Slice
from charact.measure.script.windows.phase_times import Order

if TYPE_CHECKING:
    import numpy as np

_FIELDS = [("kind", "u1"), ("flags", "u1"), ("phase", "u1"), ("start_ns", "<i8"), ("end_ns", "<i8"), ("owner", "<i8"),
           ("start_device_ns", "<i8"), ("end_device_ns", "<i8")]
"""Fields of a record of `packed`."""


class Repeats:
    """Slices of an iteration, and of those after it that have the same slices at other times.

    Args:
        slices: from the iteration's first one. Their events are times (ns).
        num_slices: of the iteration.
    """

    def __init__(self, slices: list[Slice], num_slices: int) -> None:
        import numpy as np

        records = np.frombuffer(packed(slices, int), np.dtype(_FIELDS))
        blocks = records[:len(records) // num_slices * num_slices].reshape(-1, num_slices)
        same = np.ones(len(blocks), bool)
        for name in ("kind", "flags", "phase", "owner"):
            same &= (blocks[name] == blocks[name][0]).all(axis=1)
        for name in ("start_device_ns", "end_device_ns"):
            same &= ((blocks[name] == NO_TIME) == (blocks[name][0] == NO_TIME)).all(axis=1)
        self.number = (len(same) if same.all() else int(same.argmin())) - 1
        """Number of repeats after the iteration."""
        self._blocks = blocks[:self.number + 1]

    def times_ns(self, order: Order) -> "tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]":
        """Return the wall times (ns) of all of these iterations but the last, and of each phase, see `PhaseTimes.of`.

        The last one has no end yet.
        """
        import numpy as np

        blocks, host, device = self._blocks, ("start_ns", "end_ns"), ("start_device_ns", "end_device_ns")
        on_device = not any((blocks[name][0] == NO_TIME).any() for name in device)
        starts, ends = (blocks[name] for name in (device if on_device else host))
        times = np.empty((self.number, 2 * starts.shape[1] + 1), np.int64)
        times[:, 0:-1:2], times[:, 1::2], times[:, -1] = starts[:-1], ends[:-1], starts[1:, 0]
        wall_ns = times[:, order.end] - times[:, order.start]
        phase_ns = {"other": wall_ns.copy()}
        for phase, begin, end in order.parts:
            length_ns = times[:, end] - times[:, begin]
            phase_ns["other"] -= length_ns
            phase_ns[phase] = phase_ns[phase] + length_ns if phase in phase_ns else length_ns
        return wall_ns, phase_ns
