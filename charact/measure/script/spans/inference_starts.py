"""Forwards at which the iterations of a program without training begin. No torch in here.

An iteration begins where the forward that began the first one recurs. So an encoder and the steps of a decoder after it
are one iteration. A method of the same model, such as `generate`, takes its place: the first forward was a trial.

If that forward no longer recurs, it was part of the preparation. Then the rarest of the forwards that recur since
begins the iterations, such as an encoder that runs once for many steps of a decoder.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from charact.measure.script.spans.recorder import Slice

_UNDECIDED = 256
"""Number of other forwards after which a forward that has not recurred is part of the preparation."""
_FEWEST, _LONGER = 64, 8
"""The same, once it has recurred: that many, or that many times as many as were between its calls."""


class InferenceStarts:
    """Recognizes these forwards as they arrive, while a program runs and from its event log alike."""

    def __init__(self) -> None:
        self._first: tuple[int, bool] | None = None
        """Owner of the forward that begins iterations, and whether it is a method other than `forward`."""
        self._others: list[Slice] = []
        """Forwards since the last start."""
        self._longest: int | None = None
        """Largest number of forwards between two starts; None before the second."""

    def begins(self, owner: int, *, is_method: bool) -> bool:
        """Return whether a forward that comes next begins an iteration."""
        return self._first is None or (owner, is_method) in (self._first, (self._first[0], True))

    def take(self, forward: Slice) -> Sequence[Slice]:
        """Return the forwards that begin an iteration, out of this one and those since the last start.

        There are several if only now it is known which forward begins them.
        """
        if self.begins(forward.owner, is_method=forward.method):
            if self._first is not None:
                self._longest = max(self._longest or 0, len(self._others))
            self._first, self._others = _key(forward), []
            return (forward,)
        self._others.append(forward)
        limit = _UNDECIDED if self._longest is None else max(_FEWEST, _LONGER * self._longest)
        return self._begin_elsewhere() if len(self._others) > limit else ()

    def _begin_elsewhere(self) -> Sequence[Slice]:
        """Choose another forward to begin iterations; return its calls since the last start."""
        others = self._others
        numbers = Counter(map(_key, others))
        recurring = [key for key, number in numbers.items() if number > 1]
        if not recurring:
            return ()
        self._first = min(recurring, key=numbers.__getitem__)
        places = [place for place, forward in enumerate(others) if _key(forward) == self._first]
        self._longest = max(after - before - 1 for before, after in pairwise(places))
        self._others = others[places[-1] + 1:]
        return [others[place] for place in places]


def _key(forward: Slice) -> tuple[int, bool]:
    return forward.owner, forward.method
