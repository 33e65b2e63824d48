"""Annotations that a program makes itself: phases, batches and the ends of iterations."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeVar

from charact.core.errors import UserError
from charact.measure.script.session import Session
from charact.measure.script.spans.recorder import Kind
from charact.record.schema import PHASES

Item = TypeVar("Item")

_KINDS = {
    "data": Kind.FETCH, "forward": Kind.FORWARD, "loss": Kind.LOSS, "backward": Kind.BACKWARD, "update": Kind.UPDATE,
    "communication": Kind.COMMUNICATION, "other": Kind.OTHER,
}
assert set(_KINDS) == set(PHASES) - {"sample"}, "a watched program has no phase for the choice of tokens"


class Annotations:
    """Records the program's annotations in the thread that is recorded."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder = session.recorder
        self._thread = get_ident()
        self._num_loops = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute all time inside to a phase, except for phases nested inside."""
        if name not in _KINDS:
            raise UserError(f"unknown phase '{name}': name one of {', '.join(_KINDS)}")
        entered = self._enter(name)
        try:
            yield
        finally:
            if entered:
                self._recorder.leave_annotated()
                self._flush()

    def batches(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield the same items, each fetched in the phase `data`."""
        self._num_loops += 1
        owner = -self._num_loops
        iterator: Iterator[Item] | None = None
        while True:
            entered = self._enter("data", owner)
            try:
                if iterator is None:
                    iterator = iter(batches)
                batch = next(iterator)
            except StopIteration:
                if entered:
                    self._recorder.leave_as(Kind.EXHAUSTED)
                return
            except BaseException:
                if entered:
                    self._recorder.drop()
                raise
            if entered:
                self._recorder.leave()
                self._flush()
            yield batch

    def end_iteration(self, action: Callable[[], None] = lambda: None) -> None:
        """End an iteration; from the first call on, iterations end nowhere else."""
        self._check_thread()

        def pause() -> None:
            self._flush()
            action()

        if self._recorder.on:
            self._recorder.end_iteration(pause)
        else:
            action()

    def note_rule(self, facts: dict[str, Any]) -> None:
        """Write a note on how warm-up and measurement ended: facts of the timing pass."""
        self._session.note({"note": "rule", "facts": facts})

    def _enter(self, phase: str, owner: int = 0) -> bool:
        """Open the phase; return whether anything is recorded."""
        self._check_thread()
        if not self._recorder.on:
            return False
        import torch

        self._recorder.enter_annotated(_KINDS[phase], phase, owner, grad=torch.is_grad_enabled())
        return True

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise UserError("a Profiler records the thread that entered it: call its methods in that thread")

    def _flush(self) -> None:
        if self._recorder.idle:
            self._session.flush_if_due()
