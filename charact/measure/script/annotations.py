"""What a program tells of itself: the phase that runs, the batches it goes through, and where an iteration ends."""

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
    "data": Kind.FETCH, "forward": Kind.FORWARD, "loss": Kind.LOSS, "backward": Kind.BACKWARD, "update": Kind.TIDY,
    "communication": Kind.COMMUNICATION, "other": Kind.OTHER,
}
assert set(_KINDS) == set(PHASES)


class Told:
    """Takes what the program tells, in the thread that is watched.

    Args:
        session: watches the program; what is told after its end has no effect.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder = session.recorder
        self._thread = get_ident()
        self._num_loops = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Give all time inside to a phase, but for that of phases named inside of it.

        Raises:
            UserError: there is no such phase, or this is not the thread that is watched.
        """
        if name not in _KINDS:
            raise UserError(f"there is no phase '{name}': name one of {', '.join(PHASES)}")
        entered = self._enter(name)
        try:
            yield
        finally:
            if entered:
                self._recorder.leave_named()
                self._flush()

    def batches(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The same items, each fetched in the phase `data`.

        Raises:
            UserError: this is not the thread that is watched.
        """
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

    def end_iteration(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """An iteration ends here, and from now on nowhere else than where this is called.

        Args:
            meanwhile: what is to be done between this iteration and the next.

        Raises:
            UserError: this is not the thread that is watched.
        """
        self._check_thread()

        def pause() -> None:
            self._flush()
            meanwhile()

        if self._recorder.on:
            self._recorder.end_iteration(pause)
        else:
            meanwhile()

    def note_rule(self, facts: dict[str, Any]) -> None:
        """Note how warm-up and measurement ended: facts of the timing pass."""
        self._session.note({"note": "rule", "facts": facts})

    def _enter(self, phase: str, owner: int = 0) -> bool:
        """Open the phase; returns whether anything is measured at all."""
        self._check_thread()
        if not self._recorder.on:
            return False
        import torch

        self._recorder.enter_named(_KINDS[phase], phase, owner, grad=torch.is_grad_enabled())
        return True

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise UserError("a Profiler watches the thread that entered it: name phases, batches and steps in that one")

    def _flush(self) -> None:
        if self._recorder.idle:
            self._session.flush_if_due()
