"""Totals of a program's slices, by owner: calls of models, and fetches of loaders. No torch in here."""

from collections import Counter
from collections.abc import Iterable

from charact.measure.script.spans.recorder import Kind, Slice

_ENDS_INFERENCE = frozenset({Kind.FETCH, Kind.EXHAUSTED, Kind.END})


class SliceTotals:
    """Numbers and times of spans, by owner ID."""

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        self.calls: Counter[int] = Counter()
        """Outermost calls of each model."""
        self.inference_with_grad: Counter[int] = Counter()
        """Those in eval mode and with gradients, after which no backward followed.

        None followed if the next batch is fetched first, or the model called in training mode.
        """
        self.fetches: Counter[int] = Counter()
        """Batches of each loader's iterator."""
        self.fetch_ns: Counter[int] = Counter()
        """Time of its fetches, also of those without a batch."""
        self._undecided: Counter[int] = Counter()
        for one in slices:
            self._add(one)
        self.inference_with_grad += self._undecided

    def _add(self, one: Slice) -> None:
        if one.kind in _ENDS_INFERENCE:
            self.inference_with_grad += self._undecided
            self._undecided.clear()
            self.fetches[one.owner] += one.kind is Kind.FETCH and one.ends
            self.fetch_ns[one.owner] += one.end_ns - one.start_ns
        elif one.kind is Kind.BACKWARD:
            self._undecided.clear()
        elif one.kind is Kind.FORWARD and one.begins and one.owner:
            self.calls[one.owner] += 1
            if one.grad and one.training:
                self.inference_with_grad[one.owner] += self._undecided.pop(one.owner, 0)
            elif one.grad:
                self._undecided[one.owner] += 1
