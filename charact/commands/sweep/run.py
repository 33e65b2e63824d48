"""Runs the cases of a sweep that have not ended, and shows the progress."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from charact.commands._shared.print_table import print_table
from charact.commands.sweep.known import check_cases, check_possible
from charact.commands.sweep.status import expected, plan_rows, plan_summary, summary
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import OUT, show, warn
from charact.sweeps import local
from charact.sweeps import slurm as on_slurm
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import CaseStatus, SweepDirectory, remaining_s, statuses
from charact.views.tables import format as fmt

_COORDINATOR = "coordinator"
_EVERY_S = 5.0
_NUM_ENDED, _NUM_RUNNING = 5, 8
_STYLES = {"ok": "green", "failed": "red", "killed": "red", "running": "bold"}


def parameters_of(text: str | None) -> dict[str, str]:
    """Parse options of sbatch: `partition=gpu,exclusive=true`."""
    found: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if not name.strip() or not value.strip():
            raise UserError(f"--slurm: '{part}' is no NAME=VALUE: write partition=gpu,exclusive=true")
        found[name.strip().lstrip("-").replace("-", "_")] = value.strip()
    return found


def run_sweep(definition: Definition, out: Path | None, slurm: Mapping[str, str] | None, *, dry_run: bool, retry: bool,
              quiet: bool) -> int:
    """Run the cases of a sweep that have not ended; return the exit status: 1 if a case did not succeed.

    `slurm` has options of sbatch; None runs the cases here.
    """
    check_cases(definition.cases)
    check_possible(definition.cases, here=slurm is None and all(case.node is None for case in definition.cases))
    directory = SweepDirectory(out if out is not None else Path("sweeps") / definition.name)
    if dry_run:
        found = statuses(directory, definition.cases)
        print_table(f"{definition.name}: {len(found):,} cases", ["case", "state", "last time", "expected"],
                    plan_rows(found))
        show(*plan_summary(found))
        return 0
    if slurm is None and any(case.node is not None for case in definition.cases):
        raise UserError("cases name types of node, which only Slurm has: add --launcher slurm")
    directory.create(definition)
    with directory.locked(_COORDINATOR) as is_ours:
        if not is_ours:
            raise UserError(f"another process runs the sweep in {directory.path}: wait for it, or follow it with "
                            f"charact sweep status {directory.path}")
        if retry:
            for case in definition.cases:
                if directory.state(case) == "failed":
                    directory.forget(case)
        found = statuses(directory, definition.cases)
        pending, lost = [status.case for status in found if not status.is_done], []
        try:
            with Progress(directory, definition.cases, enabled=not quiet) as progress:
                if slurm is None:
                    local.run_cases(directory, pending, progress.begin, progress.end)
                else:
                    lost = on_slurm.run_cases(directory, pending, slurm, definition.nodes, progress.show)
            if lost:
                warn(f"{len(lost):,} jobs left the queue without a result (cancelled, or their node died): the "
                     "same command runs them again")
        except KeyboardInterrupt:
            goes_on = "" if slurm is None else "jobs continue; "
            warn(f"interrupted: {goes_on}the same command runs the rest ({directory.path})")
            return 130
    found = statuses(directory, definition.cases)
    show(*summary(found), f"Wrote {directory.path}",
         f"  one report  charact sweep merge {directory.path}")
    return int(any(status.state != "ok" for status in found))


class Progress:
    """The progress of a sweep: a table that is drawn in place on a terminal; elsewhere a line for each case.

    The table is drawn when a case begins or ends: no thread draws while a case is measured. Cases that did not succeed
    are reported in any case, on a terminal at the end.
    """

    def __init__(self, directory: SweepDirectory, cases: Sequence[SweepCase], *, enabled: bool,
                 console: Console | None = None) -> None:
        self._directory, self._cases, self._enabled = directory, cases, enabled
        self._live = Live(console=console or Console(), auto_refresh=False, transient=True) if enabled and (
            console is not None or OUT.isatty()) else None
        self._begun: dict[str, datetime] = {}
        self._problems: list[str] = []
        self._line, self._shown_s = "", -_EVERY_S

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        for problem in self._problems:
            warn(problem)

    def begin(self, case: SweepCase) -> None:
        """Draw the table with this case as running, or print its line with the expected time of all that is left."""
        self._begun[case.id] = datetime.now()
        if self._live is not None:
            self._draw()
        elif self._enabled:
            found = statuses(self._directory, self._cases)
            number = 1 + sum(status.is_done for status in found)
            OUT.print(f"{number:>{len(str(len(found)))}}/{len(found)} {case.label}{expected(remaining_s(found))}")

    def show(self) -> None:
        """Show cases that have begun and ended elsewhere, at most every `_EVERY_S`; a line only if it has changed."""
        if not self._enabled or time.monotonic() - self._shown_s < _EVERY_S:
            return
        if self._live is not None:
            self._draw()
            return
        (line,) = summary(statuses(self._directory, self._cases))
        if line != self._line:
            OUT.print(line)
            self._line, self._shown_s = line, time.monotonic()

    def end(self, case: SweepCase) -> None:
        """Draw the table without this case, and report the case if it did not succeed."""
        self._begun.pop(case.id, None)
        outcome = self._directory.outcome(case)
        if outcome is not None and outcome.state != "ok":
            problem = f"{case.label}: {outcome.state}: {outcome.reason} ({self._directory.log(case)})"
            if self._live is None:
                warn(problem)
            else:
                self._problems.append(problem)
        if self._live is not None:
            self._draw()

    def _draw(self) -> None:
        assert self._live is not None
        self._live.update(table(statuses(self._directory, self._cases), self._begun, datetime.now()), refresh=True)
        self._shown_s = time.monotonic()


def table(found: Sequence[CaseStatus], begun: Mapping[str, datetime], now: datetime) -> Group:
    """Return the table: done and total, the expected end, running cases, and those that ended last.

    `begun` has the times at which cases that run here began, by identity; those that run elsewhere have nstatus.
    """
    left_s, end = remaining_s(found), ""
    if left_s:
        then = now + timedelta(seconds=left_s)
        end = f", until about {then:%H:%M}" if then.date() == now.date() else f", until about {then:%Y-%m-%d %H:%M}"
    title = f"{sum(status.is_done for status in found):,} of {len(found):,} done: {summary(found)[0]}{end}"
    drawn = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    running = [status for status in found if status.state == "running" or status.case.id in begun]
    ended = sorted((status for status in found if status.is_done and status.outcome is not None),
                   key=lambda status: status.outcome.started if status.outcome else "")
    for status in running[:_NUM_RUNNING]:
        since = f"since {begun[status.case.id]:%H:%M:%S}" if status.case.id in begun else ""
        drawn.add_row(Text("running", style=_STYLES["running"]), Text(status.case.label), since)
    if len(running) > _NUM_RUNNING:
        drawn.add_row("", Text(f"and {len(running) - _NUM_RUNNING:,} more"), "")
    for status in reversed(ended[-_NUM_ENDED:]):
        took = fmt.duration(status.outcome.seconds) if status.outcome is not None else ""
        drawn.add_row(Text(status.state, style=_STYLES[status.state]), Text(status.case.label), took)
    return Group(Text(title, style="bold"), drawn)
