"""Live progress of a run on a terminal: the case, the pass or epoch, the iteration rate and the time left."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from charact.core.console import Console
from charact.core.observer import Observer
from charact.core.output import OUT, show, warn

_REFRESH_S = 0.25
_QUIET_S = 1.0
_LINE_S = 10.0
_PASSES_A_CASE = 4


class _Live(Observer):
    """Progress on standard error: on a terminal a bar, elsewhere a line every 10 s.

    It draws in its callbacks only: a thread of its own would disturb measurements.
    """

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}", markup=False), TextColumn("{task.fields[left]}", markup=False),
            console=console, auto_refresh=False, transient=True, disable=not (enabled and console.is_terminal),
            redirect_stdout=OUT.isatty(),
        )
        self._task = self._progress.add_task("starting", total=None, state="", left="")
        self._prints_lines = enabled and not console.is_terminal
        self._drawn = self._begun = time.monotonic()
        self._case_begun = self._begun
        self._number = self._total = 0

    def __enter__(self) -> Self:
        self._progress.start()
        self._progress.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._progress.stop()

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._drawn >= (_LINE_S if self._prints_lines else _REFRESH_S)

    def _draw(self) -> None:
        if not self._prints_lines:
            self._progress.refresh()
        elif self._is_due:
            task = self._progress.tasks[0]
            warn(", ".join(filter(None, [f"{task.description}: {task.fields['state']}", task.fields["left"]])))
        else:
            return
        self._drawn = time.monotonic()


class RunsProgress:
    """Progress of reading many runs, on standard error, shown after the first second.

    On a terminal it is a bar that disappears at the end; elsewhere a line every 10 s. If runs are read more than once,
    the bar starts again.
    """

    def __init__(self, what: str, total: int, *, enabled: bool = True) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._what, self.total, self._enabled = what, total, enabled
        self._num_done = 0
        self._begun = self._shown = time.monotonic()
        self._bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
                             TextColumn("{task.completed:,.0f} of {task.total:,.0f} runs", markup=False),
                             TimeRemainingColumn(),
                             console=self._console, transient=True, auto_refresh=False)  # fmt: skip
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._enabled = False
        if self._bar.live.is_started:  # otherwise stop() prints an empty line
            self._bar.stop()

    def advance(self, run: object = None) -> None:
        """Count one more run."""
        self._num_done += 1
        now = time.monotonic()
        if not self._enabled or now - self._begun < _QUIET_S:
            return
        if self._console.is_terminal:
            self._bar.start()
            self._bar.update(self._task, total=self.total, completed=self._completed)
            if now - self._shown >= _REFRESH_S:
                self._bar.refresh()
                self._shown = now
        elif now - self._shown >= _LINE_S:
            self._console.print(f"{self._what}: {self._completed:,} of {self.total:,} runs")
            self._shown = now

    @property
    def _completed(self) -> int:
        return (self._num_done - 1) % self.total + 1


class LiveProgress(_Live):
    """Progress of the passes over each case."""

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Show the case and its index in the sweep."""
        self._number, self._total, self._case_begun = number, total, time.monotonic()
        self._progress.update(self._task, total=total * _PASSES_A_CASE, completed=(number - 1) * _PASSES_A_CASE,
                              description=f"[{number}/{total}] {case_id}", state="setting up", left=self._left())
        self._draw()

    def pass_started(self, name: str) -> None:
        """Show the pass."""
        self._pass = f"{name} pass"
        self._progress.update(self._task, advance=1, state=self._pass, left=self._left())
        self._draw()

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """Show the pass's iterations and their rate, a few times a second at most."""
        if self._is_due:
            self._progress.update(self._task, left=self._left(),
                                  state=f"{self._pass}: {num_iterations} iterations, {1 / median_s:.3g}/s")
            self._draw()

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
        self._progress.update(self._task, state=name, left=self._left())
        self._draw()

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
        self._epoch = ""
        self._num_epochs_left = 0
        self._stage_begun = 0.0
        self._last_epoch_s: float | None = None

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Show the case and its index in the sequence."""
        if self._lines and total > 1:
            show(f"[{number}/{total}] {case_id}")
        self._last_epoch_s = None
        self._progress.update(self._task, description=f"[{number}/{total}] {case_id}", state="setting up", left="")
        self._draw()

    def epoch_started(self, epoch: int, num_epochs: int) -> None:
        """Store the epoch's number."""
        self._epoch, self._num_epochs_left = f"epoch {epoch}/{num_epochs}", num_epochs - epoch + 1
        self._epoch_begun = time.monotonic()

    def stage_iteration(self, stage: str, number: int, total: int) -> None:
        """Show the stage's iterations, their rate and the time left, a few times a second at most."""
        now = time.monotonic()
        if number == 1:
            self._stage_begun = now
        if number > 1 and self._is_due:
            rate = (number - 1) / (now - self._stage_begun)
            self._progress.update(self._task, total=total, completed=number, left=self._left(now, total / rate),
                                  state=f"{self._epoch}, {stage}: {number:,} of {total:,}, {rate:.3g}/s")
            self._draw()

    def epoch_ended(self, epoch: int, num_epochs: int, training: Mapping[str, float | None],
                    validation: Mapping[str, float | None], seconds: float) -> None:
        """Print the epoch's results."""
        self._last_epoch_s = time.monotonic() - self._epoch_begun
        if self._lines:
            values = ", ".join(f"{metric.replace('_', ' ')} {value:.4g}" for metric, value in validation.items()
                               if value is not None)
            show(f"epoch {epoch}/{num_epochs}  loss {training['loss']:.4g}  validation: {values}  {seconds:.3g} s")

    def _left(self, now: float, stage_s: float) -> str:
        """Return the time left; in the first epoch, a lower bound: the time of its validation is not known.

        Args:
            now: the current time.
            stage_s: estimated time of the current stage.
        """
        epoch_s = stage_s if self._last_epoch_s is None else self._last_epoch_s
        left_s = max(0.0, self._num_epochs_left * epoch_s - (now - self._epoch_begun))
        return f"{'about' if self._last_epoch_s else 'at least'} {left_s:.0f} s left"


class ReadingProgress(_Live):
    """Progress of reading a file, shown after one second.

    Args:
        console: console of the progress.
        name: name of the file.
        enabled: whether it is drawn.
    """

    def __init__(self, console: Console, name: str, *, enabled: bool) -> None:
        super().__init__(console, enabled=enabled)
        self._progress.update(self._task, description=f"reading {name}")

    def __enter__(self) -> Self:
        return self

    def __call__(self, num_bytes: int, total_bytes: int) -> None:
        """Show the share that was read, a few times a second at most."""
        if self._is_due and time.monotonic() - self._begun >= _QUIET_S:
            self._progress.update(self._task, total=total_bytes, completed=num_bytes,
                                  state=f"{100 * num_bytes / total_bytes:.0f} %")
            self._progress.start()
            self._draw()
