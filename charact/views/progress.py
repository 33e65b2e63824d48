"""Live progress of a run on a terminal: the case, the pass, the iteration rate and the time left."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_REFRESH_S = 0.25
_PASSES_A_CASE = 4


class LiveProgress:
    """Draws only when it is told something, never from a thread of its own: that would disturb what is measured."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=12), TextColumn("{task.fields[state]}"),
            TextColumn("{task.fields[left]}"),
            console=console, auto_refresh=False, transient=True, disable=not enabled,
        )
        self._task = self._progress.add_task("starting", total=None, state="", left="")
        self._drawn = self._begun = time.monotonic()
        self._number = self._total = 0

    def __enter__(self) -> Self:
        self._progress.start()
        self._progress.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._progress.stop()

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Name the case and its place in the sweep."""
        self._number, self._total = number, total
        self._progress.update(self._task, total=total * _PASSES_A_CASE, completed=(number - 1) * _PASSES_A_CASE,
                              description=f"[{number}/{total}] {case_id}", state="setting up", left=self._left())
        self._draw()

    def pass_started(self, name: str) -> None:
        """Name the pass."""
        self._progress.update(self._task, advance=1, state=f"{name} pass")
        self._draw()

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """Show the timing pass's iterations and their rate, a few times a second at most."""
        if time.monotonic() - self._drawn >= _REFRESH_S:
            self._progress.update(self._task, state=f"timing pass: {num_iterations} iterations, {1 / median_s:.3g}/s")
            self._draw()

    def case_ended(self, status: str, reason: str | None) -> None:
        """Nothing is left behind: the summary tells what failed."""

    def _left(self) -> str:
        num_done = self._number - 1
        if num_done < 1:
            return ""
        left_s = (time.monotonic() - self._begun) / num_done * (self._total - num_done)
        return f"about {left_s:.0f} s left"

    def _draw(self) -> None:
        self._progress.refresh()
        self._drawn = time.monotonic()
