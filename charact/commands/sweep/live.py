"""The progress of a sweep: a table that is drawn in place on a terminal; elsewhere a line for each case."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from charact.commands.sweep.status import expected, summary
from charact.core.console import Console
from charact.core.output import OUT, warn
from charact.sweeps.definition import SweepCase
from charact.sweeps.directory import SweepDirectory
from charact.sweeps.progress import CaseStatus, remaining_s, statuses
from charact.views.tables import format as fmt

_EVERY_S = 5.0
_NUM_ENDED, _NUM_RUNNING = 5, 8
_STYLES = {"ok": "green", "failed": "red", "killed": "red", "running": "bold"}


class Progress:
    """Callbacks of a sweep that print nothing, and warn of each case that did not succeed.

    Args:
        directory: directory of the sweep.
        cases: all its cases.
    """

    def __init__(self, directory: SweepDirectory, cases: Sequence[SweepCase]) -> None:
        self._directory, self._cases = directory, cases

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        pass

    def begin(self, case: SweepCase) -> None:
        """A case begins."""

    def show(self) -> None:
        """Cases may have begun and ended elsewhere."""

    def end(self, case: SweepCase) -> None:
        """Warn if a case did not succeed."""
        if problem := self._problem(case):
            warn(problem)

    def _found(self) -> list[CaseStatus]:
        return statuses(self._directory, self._cases)

    def _problem(self, case: SweepCase) -> str:
        outcome = self._directory.outcome(case)
        if outcome is None or outcome.state == "ok":
            return ""
        return f"{case.label}: {outcome.state}: {outcome.reason} ({self._directory.log(case)})"


class Lines(Progress):
    """Prints a line when a case begins; on a cluster when the number of cases by state has changed."""

    def __init__(self, directory: SweepDirectory, cases: Sequence[SweepCase]) -> None:
        super().__init__(directory, cases)
        self._line, self._shown_s = "", -_EVERY_S

    def begin(self, case: SweepCase) -> None:
        """Print which case begins, and the expected time of all that is left."""
        found = self._found()
        number = 1 + sum(one.is_done for one in found)
        OUT.print(f"{number:>{len(str(len(found)))}}/{len(found)} {case.label}{expected(remaining_s(found))}")

    def show(self) -> None:
        """Print a line with the number of cases by state when it has changed, at most every `_EVERY_S`."""
        if time.monotonic() - self._shown_s < _EVERY_S:
            return
        (line,) = summary(self._found())
        if line != self._line:
            OUT.print(line)
            self._line, self._shown_s = line, time.monotonic()


class LiveTable(Progress):
    """Draws a table in place when a case begins or ends: no thread draws while a case is measured."""

    def __init__(self, directory: SweepDirectory, cases: Sequence[SweepCase], console: Console | None = None) -> None:
        super().__init__(directory, cases)
        self._live = Live(console=console or Console(), auto_refresh=False, transient=True)
        self._begun: dict[str, datetime] = {}
        self._problems: list[str] = []
        self._shown_s = -_EVERY_S

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._live.stop()
        for problem in self._problems:
            warn(problem)

    def begin(self, case: SweepCase) -> None:
        """Draw the table with this case as running."""
        self._begun[case.id] = datetime.now()
        self._draw()

    def show(self) -> None:
        """Draw the table, at most every `_EVERY_S`."""
        if time.monotonic() - self._shown_s >= _EVERY_S:
            self._draw()

    def end(self, case: SweepCase) -> None:
        """Draw the table without this case; keep why it did not succeed until the end."""
        self._begun.pop(case.id, None)
        self._problems += filter(None, [self._problem(case)])
        self._draw()

    def _draw(self) -> None:
        self._live.update(table(self._found(), self._begun, datetime.now()), refresh=True)
        self._shown_s = time.monotonic()


def progress_of(directory: SweepDirectory, cases: Sequence[SweepCase], *, enabled: bool) -> Progress:
    """Return the progress for this terminal or pipe; one that prints only problems if not enabled."""
    if not enabled:
        return Progress(directory, cases)
    return LiveTable(directory, cases) if OUT.isatty() else Lines(directory, cases)


def table(found: Sequence[CaseStatus], begun: Mapping[str, datetime], now: datetime) -> Group:
    """Return the table: done and total, the expected end, running cases, and those that ended last.

    Args:
        found: all cases.
        begun: when cases that run here began, by identity; those that run elsewhere have no time.
        now: the time.
    """
    left_s = remaining_s(found)
    end = f", until about {_clock(now, now + timedelta(seconds=left_s))}" if left_s else ""
    title = f"{sum(one.is_done for one in found):,} of {len(found):,} done: {summary(found)[0]}{end}"
    drawn = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    running = [one for one in found if one.state == "running" or one.case.id in begun]
    ended = sorted((one for one in found if one.is_done and one.outcome is not None),
                   key=lambda one: one.outcome.started if one.outcome else "")
    for one in running[:_NUM_RUNNING]:
        since = f"since {begun[one.case.id]:%H:%M:%S}" if one.case.id in begun else ""
        drawn.add_row(Text("running", style=_STYLES["running"]), Text(one.case.label), since)
    if len(running) > _NUM_RUNNING:
        drawn.add_row("", Text(f"and {len(running) - _NUM_RUNNING:,} more"), "")
    for one in reversed(ended[-_NUM_ENDED:]):
        took = fmt.duration(one.outcome.seconds) if one.outcome is not None else ""
        drawn.add_row(Text(one.state, style=_STYLES[one.state]), Text(one.case.label), took)
    return Group(Text(title, style="bold"), drawn)


def _clock(now: datetime, then: datetime) -> str:
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M}"
