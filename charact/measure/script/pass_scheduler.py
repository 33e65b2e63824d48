"""Schedule of the passes that follow the timing of a profiled program; imports no torch when loaded.

Each pass measures its own iterations, after one iteration of warm-up. Instruments therefore disturb neither other
passes nor the timing. Afterwards, some passes measure the evaluations inside of a training.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from charact.core.errors import UserError
from charact.measure.passes.resident_memory import resident_peak_bytes
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.record.in_progress import TRACES

if TYPE_CHECKING:
    from charact.measure.script.program_state import Instrument

_NEEDED = ": all passes need 22 iterations, or 10 after those of --iterations"
LEAST_BUDGET_S = 5.0
"""Time that the passes may always take."""
_READING_FACTOR = 30
"""Processor time to read a profile over what profiling adds to its iteration.

*Source*: 250,000 events in an iteration, PyTorch 2.13: 0.18 s are added, and ending, exporting and reading the profile
takes 5.3 s.
"""
_CLEAR_FRAC = 0.2
"""Minimum share of an iteration's time that counts as added by a pass: less is noise."""
_NUM_RECENT = 16
"""Number of iterations before the passes that show how much iterations vary."""
MAX_DISCARDED = 3
"""Largest number of iterations that a pass discards because a validation ran in them."""

_NUM_TIMED = 13
"""Number of iterations before the passes: these take 7, so that a script of 20 steps has all of them."""
_LONG_ENOUGH = (9, 1.0), (4, 3.0)
"""Numbers of iterations that are enough if they took so many seconds: a program may have few long iterations."""
_WARMUP = 3
"""Batches of each evaluation that are inferred before a pass measures."""
_ENDS = frozenset({Kind.FETCH, Kind.BACKWARD, Kind.STEP, Kind.UPDATE})
"""Spans that end an evaluation, except for fetches of its own loader."""


class PassScheduler:
    """Runs the passes one after another on the program's iterations.

    A pass that fails records its reason; its errors do not reach the program.

    They may take a share `budget_frac` of the program's time, or `LEAST_BUDGET_S` if that is more (None: no limit): a
    pass is skipped if earlier ones have taken it. Processor time of the calling thread counts. If other ranks decide,
    too, when the passes begin, all decide alike (`in_step`). `objects` are the program's models, optimizers and loaders
    by owner ID, and `names` returns the program's names for them.
    """

    def __init__(self, passes: Sequence[str], directory: Path, recorder: SpanRecorder, objects: Mapping[int, Any],
                 names: Callable[[], Mapping[int, str]], note: Callable[[dict[str, Any]], None],
                 budget_frac: float | None = None, *, in_step: bool = False) -> None:
        self._passes, self._waiting = passes, list(passes)
        self._directory, self._recorder, self._note = directory, recorder, note
        self._objects, self._names = objects, names
        self._began_s, self._budget_frac, self._in_step = time.perf_counter(), budget_frac, in_step
        self._num_timed = self._first_end_ns = 0
        self._is_due = False
        self._spent_s = 0.0
        """Processor time of the passes, which other programs do not lengthen, without that of the iterations."""
        self._acting_s = 0.0
        """Processor time when a pass began to run code of its own."""
        self._typical_s: float | None = None
        """Processor time of the last warm-up of a pass."""
        self._ends_s: deque[float] = deque(maxlen=_NUM_RECENT)
        """Processor times at the ends of the last iterations before the passes."""
        self._iteration_s: float | None = None
        """Processor time at the start of the iteration that warms up or is measured; None outside of those."""
        self._begun = False
        self._mode = "train"
        """Mode of the case that the passes measure."""
        self._name = ""
        self._instrument: Instrument | None = None
        self._windows: list[list[int]] = []
        self._since_ns: int | None = None
        """Start of the iteration being measured; None while none is."""
        self._trained: set[int] = set()
        """Models that ran in training mode with gradients."""
        self._num_discarded = 0
        self._peak_before_bytes: int | None = None
        self._peak_after_bytes: int | None = None

    def program_peak_bytes(self) -> int:
        """Return the largest resident set of the process so far, without that of the passes.

        *Error*: if the passes had the largest one, what the program used after them is not seen.
        """
        peak = resident_peak_bytes()
        in_passes = self._peak_after_bytes is None or peak <= self._peak_after_bytes
        return self._peak_before_bytes if in_passes and self._peak_before_bytes is not None else peak

    @property
    def needs_more(self) -> bool:
        """Whether a pass is running or waiting."""
        return self._instrument is not None or bool(self._waiting)

    def are_due(self, *, iteration_ended: bool) -> bool:
        """Return whether the passes may run if all iterations are measured: those before were many or long.

        Call it at every boundary. It decides only at the end of an iteration; once True, the result stays True.
        """
        if iteration_ended and not self._is_due:
            now_ns = perf_counter_ns()
            self._num_timed += 1
            if self._num_timed == 1:
                self._first_end_ns = now_ns
            passed_s = (now_ns - self._first_end_ns) / 1e9
            self._is_due = self._num_timed >= _NUM_TIMED or (not self._in_step and any(
                self._num_timed >= fewest and passed_s >= least_s for fewest, least_s in _LONG_ENOUGH))
            if not self._is_due:
                self._ends_s.append(time.thread_time())
        return self._is_due

    def advance(self, *, iteration_ended: bool) -> bool:
        """Start or end passes at a boundary; return whether more iterations are needed.

        Call it only after the timing, while no span is open: at the end of an iteration or of a model's forward.
        """
        if self._waiting and not self._begun:
            self._begun = True
            self._peak_before_bytes = resident_peak_bytes()
            self._note({"note": "timing ended", "time_ns": perf_counter_ns()})
        if iteration_ended:
            self._attempt(self._next_iteration)
            self._iteration_s = time.thread_time()
        else:
            self._attempt(self._look_for_validation)
        return self.needs_more

    def continue_in_evaluations(self) -> None:
        """Run the passes "operators" and "memory" on evaluations, after all passes on the training have ended."""
        self._waiting, self._mode = [name for name in self._passes if name in ("operators", "memory")], "infer"
        self._iteration_s = None

    def interrupt(self) -> None:
        """Discard the iteration that is measured now: the program does something else."""
        self._attempt(self._drop)
        self._iteration_s = None

    def stop(self) -> None:
        """Record the running pass as failed and the waiting passes as skipped."""
        if self._instrument is not None:
            self._fail("the program ended before it had run enough iterations for this pass")
        self._skip_waiting("the program ended before this pass could begin"
                           + (_NEEDED if self._mode == "train" else ""))

    def stop_in_child(self) -> None:
        """Stop all instruments in a forked child, also if the fork happened within an iteration."""
        if self._since_ns is not None:
            from torch._C import _autograd

            if _autograd._profiler_enabled():
                _autograd._disable_profiler()
        self._recorder.on_change = None
        if self._instrument is not None:
            self._instrument.clean()
        self._instrument, self._since_ns = None, None
        self._waiting.clear()

    def _next_iteration(self) -> None:
        instrument = self._instrument
        if instrument is None:
            self._open_next()
            return
        iteration_s = None if self._iteration_s is None else self._acting_s - self._iteration_s
        if self._since_ns is None:
            self._typical_s = iteration_s
        else:
            window = [self._since_ns, perf_counter_ns()]
            self._spent_s += self._added_s(iteration_s, self._typical_s)
            reading_s = 0.0
            if instrument.may_end_early:
                times_s = sorted(end_s - begin_s for begin_s, end_s in pairwise(self._ends_s))
                long_s = [*times_s[:-1], *([] if self._typical_s is None else [self._typical_s])]
                reading_s = _READING_FACTOR * self._added_s(iteration_s, max(long_s, default=None))
            if reading_s and self._spent_s + reading_s > self._allowed_s():
                raise UserError(f"an iteration calls so many operators that reading them would take some "
                                f"{reading_s:.0f} s of processor time, and {self._allowed_s():.1f} s were allowed for "
                                "passes: give a larger --budget")
            last = len(self._windows) + 1 == instrument.num_iterations or (
                instrument.may_end_early and self._spent_s + reading_s > self._allowed_s() / 2)
            instrument.end(last=last)
            self._windows.append(window)
            self._since_ns = None
            if last:
                tables, facts = instrument.results()
                instrument.clean()
                self._instrument = None
                self._peak_after_bytes = resident_peak_bytes()
                self._note_pass(self._name, "ok", None, facts=facts, tables=tables)
                self._open_next()
                return
        self._since_ns = perf_counter_ns()
        instrument.begin()

    def _added_s(self, iteration_s: float | None, usual_s: float | None) -> float:
        """Return the processor time (s) that a pass added to an iteration; 0 if it is not clearly more than usual."""
        if iteration_s is None or usual_s is None:
            return 0.0
        added_s = iteration_s - usual_s
        return added_s if added_s > _CLEAR_FRAC * usual_s else 0.0

    def _open_next(self) -> None:
        if self._waiting and self._spend() > self._allowed_s():
            self._skip_waiting(f"charact's other passes took {self._spent_s:.1f} s of processor time, and "
                               f"{self._allowed_s():.1f} s were allowed: give a larger --budget")
        if self._waiting:
            from charact.measure.script.pass_instruments import INSTRUMENTS
            from charact.measure.script.program_state import ProgramState

            self._name, self._windows, self._num_discarded = self._waiting.pop(0), [], 0
            seen = ProgramState(self._objects, self._names)
            self._instrument = INSTRUMENTS[self._name](seen, self._recorder, self._directory / TRACES[self._mode])
            self._instrument.prepare()
            if not self._instrument.warms_up and self._mode == "train":
                self._since_ns = perf_counter_ns()
                self._instrument.begin()

    def _skip_waiting(self, reason: str) -> None:
        self._windows = []
        for name in self._waiting:
            self._note_pass(name, "skipped", reason)
        self._waiting.clear()

    def _note_pass(self, name: str, status: str, reason: str | None, **results: Any) -> None:
        self._note({"note": "pass", "pass": name, "mode": self._mode, "status": status, "reason": reason,
                    "windows": self._windows, **results})

    def _allowed_s(self) -> float:
        """Return the time that the passes may take, from the program's time so far."""
        if self._budget_frac is None:
            return float("inf")
        program_s = time.perf_counter() - self._began_s - self._spent_s
        return max(LEAST_BUDGET_S, self._budget_frac * program_s)

    def _look_for_validation(self) -> None:
        """Discard the current iteration if a trained model runs inference, because that is a validation."""
        if not self._recorder.slices:
            return
        last = self._recorder.slices[-1]
        if last.grad and last.training:
            self._trained.add(last.owner)
        elif self._instrument is not None and self._since_ns is not None and last.owner in self._trained \
                and self._num_discarded < MAX_DISCARDED:
            self._num_discarded += 1
            self._drop()

    def _drop(self) -> None:
        if self._instrument is not None and self._since_ns is not None:
            self._since_ns = None
            self._instrument.drop()

    def _attempt(self, act: Callable[[], None]) -> None:
        self._acting_s = time.thread_time()
        try:
            act()
        except UserError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        finally:
            self._spend()

    def _spend(self) -> float:
        """Add the processor time since the last call to that of the passes; return it (s)."""
        now_s = time.thread_time()
        self._spent_s += now_s - self._acting_s
        self._acting_s = now_s
        return self._spent_s

    def _fail(self, reason: str) -> None:
        """Clean up the running pass and record it as failed."""
        instrument, self._instrument = self._instrument, None
        since_ns, self._since_ns = self._since_ns, None
        if instrument is not None:
            with contextlib.suppress(Exception):  # an error during clean-up must not hide the reason
                if since_ns is not None:
                    instrument.drop()
            with contextlib.suppress(Exception):
                instrument.clean()
        self._peak_after_bytes = resident_peak_bytes()
        self._note_pass(self._name, "failed", reason)


class EvaluationPasses:
    """Runs passes on the evaluations inside of a training; an iteration begins where its next batch is fetched."""

    def __init__(self, scheduler: PassScheduler, recorder: SpanRecorder, note: Callable[[dict[str, Any]], None]
                 ) -> None:
        self._scheduler, self._recorder, self._note = scheduler, recorder, note
        self._loader = 0
        self._num_batches = 0
        """Number of batches of the loader that were inferred one after another."""
        self._is_inferred = False
        self._since_ns: int | None = None
        """Time since which passes act; None while they do not."""
        scheduler.continue_in_evaluations()

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
