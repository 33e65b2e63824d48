"""Passes on the evaluation inside of a training: an iteration of it begins where its next batch is fetched."""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from charact.measure.script.pass_scheduler import PassScheduler
from charact.measure.script.spans.recorder import Kind, SpanRecorder

_WARMUP = 3
"""Batches of each evaluation that are inferred before a pass measures."""
_ENDS = frozenset({Kind.FETCH, Kind.BACKWARD, Kind.STEP, Kind.UPDATE})
"""Spans that end an evaluation, except for fetches of its own loader."""


class EvaluationPasses:
    """Runs the passes "operators" and "memory" on evaluations, after those of the training."""

    def __init__(self, scheduler: PassScheduler, recorder: SpanRecorder, note: Callable[[dict[str, Any]], None],
                 passes: Sequence[str]) -> None:
        self._scheduler, self._recorder, self._note = scheduler, recorder, note
        self._loader = 0
        self._num_batches = 0
        """Number of batches of the loader that were inferred one after another."""
        self._is_inferred = False
        self._since_ns: int | None = None
        """Time since which passes act; None while they do not."""
        scheduler.continue_with([name for name in passes if name in ("operators", "memory")])

    def fetched(self, loader: int) -> None:
        """Notice that the program has a batch of a loader, given by its owner ID."""
        if loader != self._loader:
            self._loader, self._num_batches = loader, 0
        self._is_inferred = False

    def inferred(self) -> None:
        """Notice a forward without gradients."""
        self._num_batches += not self._is_inferred
        self._is_inferred = True
        if self._num_batches == _WARMUP and self._loader and self._scheduler.needs_more:
            self._recorder.on_open = self._on_open

    def trained(self) -> None:
        """Notice an optimizer's step."""
        self._num_batches = 0

    def stop(self) -> None:
        """End the iteration that is measured now, since the evaluation has ended."""
        self._recorder.on_open = None
        if self._since_ns is not None:
            self._scheduler.interrupt()
            self._note({"note": "evaluation measured", "span_ns": [self._since_ns, perf_counter_ns()]})
            self._since_ns = None

    def _on_open(self, kind: Kind, owner: int, _is_method: bool) -> None:
        if kind is Kind.FETCH and owner == self._loader:
            if self._since_ns is None:
                self._since_ns = perf_counter_ns()
            if not self._scheduler.advance(iteration_ended=True):
                self.stop()
        elif kind in _ENDS:
            self.stop()
