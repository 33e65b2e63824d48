"""Loops of the program's functions: those over iterations and batches, and those inside of one. No torch in here."""

import dis
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable
from types import CodeType, FrameType

_NUM_NOTED = 3
"""Number of events of a kind whose stacks are noted."""


class CodeLoops:
    """Tells loops inside of an iteration from the loops over iterations and batches.

    The latter are those that run when an iteration or a fetch ends.
    """

    def __init__(self) -> None:
        self._calls: dict[CodeType, set[int]] = defaultdict(set)
        """Offsets of the calls that ended an iteration or fetched a batch, by the function that made them."""
        self._num_events: Counter[Hashable] = Counter()

    @property
    def are_known(self) -> bool:
        """Whether an iteration or a fetch has ended."""
        return bool(self._calls)

    def note(self, event: Hashable) -> None:
        """Note the running functions at the end of an iteration or a fetch; only the first events of a kind count."""
        if self._num_events[event] >= _NUM_NOTED:
            return
        self._num_events[event] += 1
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._calls[frame.f_code].add(frame.f_lasti)
            frame = frame.f_back

    def is_inside(self, code: CodeType, line: int) -> bool:
        """Return whether a function's line is in a loop inside of an iteration, or in a comprehension."""
        calls = self._calls.get(code, set())
        loops = [(jump.argval, jump.offset) for jump in dis.get_instructions(code) if "JUMP_BACKWARD" in jump.opname]
        inner = [(begin, end) for begin, end in loops if not any(begin <= call <= end for call in calls)]
        starts = [start for start, _, number in code.co_lines() if number == line]
        return any(begin <= start <= end for begin, end in inner for start in starts)
