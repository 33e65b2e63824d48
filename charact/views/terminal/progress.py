"""Live progress of a run on a terminal: the case, the pass or epoch, the iteration rate and the time left."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn

from charact.core.console import Console
from charact.core.observer import Observer
from charact.core.output import OUT, show, warn

_REFRESH_S = 0.25
_QUIET_S = 1.0
_LINE_S = 10.0
_PASSES_A_CASE = 4


class _Live(Observer):
    """Progress on standard error: on a terminal a bar, elsewhere a line every 10 s; both after `quiet_s`.

    It draws in its callbacks only: a thread of its own would disturb measurements.
    """

    def __init__(self, console: Console, *, enabled: bool, what: str = "starting", quiet_s: float = 0.0) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}", markup=False), TextColumn("{task.fields[left]}", markup=False),
            console=console, auto_refresh=False, transient=True, disable=not (enabled and console.is_terminal),
            redirect_stdout=OUT.isatty(),
        )
        self._task = self._progress.add_task(what, total=None, state="", left="")
        self._enabled, self._quiet_s = enabled, quiet_s
        self._every_s = _REFRESH_S if console.is_terminal else _LINE_S
        self._drawn = self._begun = time.monotonic()

    def __enter__(self) -> Self:
        if not self._quiet_s:
            self._progress.start()
            self._progress.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._enabled = False
        if self._progress.live.is_started:  # otherwise stop() prints an empty line
            self._progress.stop()

    @property
    def _is_due(self) -> bool:
        now = time.monotonic()
        return self._enabled and now - self._begun >= self._quiet_s and now - self._drawn >= self._every_s

    def _draw(self, **changes: Any) -> None:
        """Change the bar and draw it; print a line if one is due."""
        self._progress.update(self._task, **changes)
        if not self._progress.disable:
            self._progress.start()
            self._progress.refresh()
        elif self._is_due:
            task = self._progress.tasks[0]
            warn(", ".join(filter(None, [f"{task.description}: {task.fields['state']}", task.fields["left"]])))
        else:
            return
        self._drawn = time.monotonic()


class RunsProgress(_Live):
    """Progress of reading many runs, shown after the first second; if they are read again, it starts again."""

    def __init__(self, what: str, total: int, *, enabled: bool = True) -> None:
        super().__init__(Console(stderr=True, highlight=False), enabled=enabled, what=what, quiet_s=_QUIET_S)
        self.total = total
        self._num_advanced = 0

    def advance(self, run: object = None) -> None:
        """Count one more run."""
        self._num_advanced += 1
        if self._is_due:
            done = (self._num_advanced - 1) % self.total + 1
            self._draw(total=self.total, completed=done, state=f"{done:,} of {self.total:,} runs")


class LiveProgress(_Live):
    """Progress of the passes over each case."""

    _number = _total = 0
    _pass = ""

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Show the case and its index in the sweep."""
        self._number, self._total, self._case_begun = number, total, time.monotonic()
        self._draw(total=total * _PASSES_A_CASE, completed=(number - 1) * _PASSES_A_CASE,
                   description=f"[{number}/{total}] {case_id}", state="setting up", left=self._left())

    def pass_started(self, name: str) -> None:
        """Show the pass."""
        self._pass = f"{name} pass"
        self._draw(advance=1, state=self._pass, left=self._left())

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """Show the pass's iterations and their rate, a few times a second at most."""
        if self._is_due:
            self._draw(state=f"{self._pass}: {num_iterations} iterations, {1 / median_s:.3g}/s", left=self._left())

    def _left(self) -> str:
        """Return the time left as text, as if each case took as long as the mean so far; "" in the first case.

        Once the case has taken longer, it is a minimum. A time below a second is left out.
        """
        num_done = self._number - 1
        if num_done < 1:
            return ""
        mean_s = (self._case_begun - self._begun) / num_done
        this_s = mean_s - (time.monotonic() - self._case_begun)
        left_s = max(this_s, 0.0) + mean_s * (self._total - self._number)
        return f"{'about' if this_s >= 0 else 'at least'} {left_s:.0f} s left" if left_s >= 1 else ""


class MemoryProgress(LiveProgress):
    """Progress of cases of a memory run; their number of passes is not known in advance."""

    _ends_s: float | None = None

    def time_left(self, seconds: float) -> None:
        """Store the time at which the last case is expected to end."""
        self._ends_s = time.monotonic() + seconds

    def pass_started(self, name: str) -> None:
        """Show the current step."""
        self._draw(state=name, left=self._left())

    def _left(self) -> str:
        left_s = 0.0 if self._ends_s is None else self._ends_s - time.monotonic()
        return f"about {left_s:.0f} s left" if left_s >= 1 else ""


class TrainingProgress(_Live):
    """Progress of trainings, and a line on standard output for each epoch.

    Args:
        console: console of the live progress.
        enabled: whether the live progress is drawn.
        lines: whether a line is printed for each epoch.
    """

    def __init__(self, console: Console, *, enabled: bool, lines: bool) -> None:
        super().__init__(console, enabled=enabled)
        self._lines = lines
        self._epoch, self._num_epochs_left = "", 0
        self._last_epoch_s: float | None = None

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Show the case and its index in the sequence."""
        if self._lines and total > 1:
            show(f"[{number}/{total}] {case_id}")
        self._last_epoch_s = None
        self._draw(description=f"[{number}/{total}] {case_id}", state="setting up", left="")

    def epoch_started(self, epoch: int, num_epochs: int) -> None:
        """Store the epoch's number."""
        self._epoch, self._num_epochs_left = f"epoch {epoch}/{num_epochs}", num_epochs - epoch + 1
        self._epoch_begun = time.monotonic()

    def stage_iteration(self, stage: str, number: int, total: int) -> None:
        """Show the stage's iterations, their rate and the time left, a few times a second at most."""
        now = time.monotonic()
        if number == 1:
            self._stage_begun = now
        elif self._is_due:
            rate = (number - 1) / (now - self._stage_begun)
            # In the first epoch a lower bound: the time of its validation is not known.
            epoch_s = total / rate if self._last_epoch_s is None else self._last_epoch_s
            left_s = max(0.0, self._num_epochs_left * epoch_s - (now - self._epoch_begun))
            self._draw(total=total, completed=number,
                       left=f"{'about' if self._last_epoch_s else 'at least'} {left_s:.0f} s left",
                       state=f"{self._epoch}, {stage}: {number:,} of {total:,}, {rate:.3g}/s")

    def epoch_ended(self, epoch: int, num_epochs: int, training: Mapping[str, float | None],
                    validation: Mapping[str, float | None], seconds: float) -> None:
        """Print the epoch's results."""
        self._last_epoch_s = time.monotonic() - self._epoch_begun
        if self._lines:
            values = ", ".join(f"{metric.replace('_', ' ')} {value:.4g}" for metric, value in validation.items()
                               if value is not None)
            show(f"epoch {epoch}/{num_epochs}  loss {training['loss']:.4g}  validation: {values}  {seconds:.3g} s")


class ReadingProgress(_Live):
    """Progress of reading a file, shown after one second.

    Args:
        console: console of the progress.
        name: name of the file.
        enabled: whether it is drawn.
    """

    def __init__(self, console: Console, name: str, *, enabled: bool) -> None:
        super().__init__(console, enabled=enabled, what=f"reading {name}", quiet_s=_QUIET_S)

    def __call__(self, num_bytes: int, total_bytes: int) -> None:
        """Show the share that was read, a few times a second at most."""
        if self._is_due:
            self._draw(total=total_bytes, completed=num_bytes, state=f"{100 * num_bytes / total_bytes:.0f} %")
