"""Watching the event logs of a program or of its ranks from another process, and showing their state."""

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from charact.analysis.profile.machine_speed import TimedIteration, current_speed
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.files import lock
from charact.core.output import OUT, show
from charact.core.timeline import Iteration, iteration_rows
from charact.measure.script.spans.event_log_reader import EventLogReader
from charact.measure.script.spans.event_log_to_record import loaders_batch_size
from charact.measure.script.spans.iteration_segmenter import Segmenter
from charact.measure.script.windows.window_log import read_latest
from charact.record.in_progress import PANEL, writer_of
from charact.record.rank_parts import is_job, parts_of
from charact.record.reader import load_run
from charact.views.terminal.bottom_lines import BottomLines
from charact.views.terminal.live import (
    MOST_RANKS,
    NUM_LINES,
    RankState,
    State,
    line,
    panel,
    ranks_line,
    ranks_panel,
)

_LATEST_S = 10.0
_READ_S, _DRAW_S, _LINE_S = 0.1, 0.5, 5.0


class Tail:
    """Reader of a running program's event log."""

    def __init__(self, directory: Path) -> None:
        manifest = load_run(directory, partial=True).manifest
        if manifest["status"] != "running" or "script" not in manifest.get("options", {}):
            raise UserError(f"{directory} is not a running charact run: give a directory such as runs/.partial-…")
        self.ended = False
        """Whether the program has reported its end, or is gone."""
        self.killed = False
        self._directory, self._name = directory, str(manifest["name"])
        self._reader, self._segmenter = EventLogReader(directory), Segmenter()
        self._latest: deque[TimedIteration] = deque()
        self._num_iterations = 0
        """Number of iterations in the event log."""
        self._num_in_windows = 0
        """Number of those after it was full."""
        self._batch_size: int | None = None
        self._last_s = time.monotonic()
        self._owners: dict[int, dict[str, Any]] = {}
        self._process = _process(writer_of(directory))

    def read(self) -> None:
        """Read the events since the last call."""
        is_alive = self._is_alive()  # checked first, so that the last events are read in any case
        for note in self._reader.notes():
            if note["note"] == "owner":
                self._owners[note["owner"]] = note
            self.ended |= note["note"] == "end"
        done = self._segmenter.feed(self._reader.slices())
        self._num_iterations += len(done)
        self._latest.extend(map(self._timed, done))
        if done:
            self._last_s = time.monotonic()
        self._read_windows()
        while self._latest and self._latest[-1].ended_s - self._latest[0].ended_s > _LATEST_S:
            self._latest.popleft()
        if not is_alive and not self.ended:
            self.ended, self.killed = True, self._directory.exists()

    def _read_windows(self) -> None:
        """Read the last seconds of a program whose event log is full: of each, the mean iteration."""
        windows = read_latest(self._directory)
        if windows is None or windows.num_iterations == self._num_in_windows:
            return
        if not self._num_in_windows:
            rest = self._segmenter.finish()
            self._num_iterations += len(rest)
            self._batch_size = next((each.batch_size for each in reversed(self._latest)), None)
        self._num_in_windows = windows.num_iterations
        self._last_s = time.monotonic()
        self._latest = deque(TimedIteration(
            each.training, each.end_ns / 1e9,
            {phase: total_ns / each.num_iterations / 1e9 for phase, total_ns in each.phase_ns.items()},
            self._batch_size) for each in windows.seconds)

    def state(self) -> State:
        """Return the current state."""
        latest = list(self._latest) or [self._timed(iteration) for iteration in self._segmenter.so_far()]
        return State(
            self._name, self._num_iterations + self._num_in_windows or len(latest),
            current_speed(latest) if latest else None, time.monotonic() - self._last_s, self._memory_bytes())

    def _timed(self, iteration: Iteration) -> TimedIteration:
        phase_s: dict[str, float] = {}
        for row in iteration_rows([iteration]):
            phase_s[row["phase"]] = row["host_s"] if row["device_s"] is None else row["device_s"]
        batch_size = loaders_batch_size(self._owners, [iteration])
        return TimedIteration(iteration.training, iteration.end_ns / 1e9, phase_s, batch_size)

    def _is_alive(self) -> bool:
        if self._process is None or not self._directory.exists():
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def _memory_bytes(self) -> int | None:
        with contextlib.suppress(psutil.Error):
            return None if self._process is None else int(self._process.memory_info().rss)
        return None


class RanksTail:
    """Reader of the event logs of a job's ranks, also of those that begin later."""

    def __init__(self, job: Path) -> None:
        self.ended = False
        """Whether all ranks have ended, or are gone."""
        self._job = job
        self._tails: dict[int, Tail] = {}
        self._find()
        if not self._tails:
            raise UserError(f"no rank of {job} is running: complete its record with charact recover {job}")

    def read(self) -> None:
        """Read the events since the last call."""
        self._find()
        for tail in self._tails.values():
            if not tail.ended:
                tail.read()
        self.ended = all(tail.ended for tail in self._tails.values())

    def state(self) -> list[RankState]:
        """Return the current state of each rank that has begun."""
        return [RankState(rank, tail.state(), "killed" if tail.killed else "ended" if tail.ended else None)
                for rank, tail in sorted(self._tails.items())]

    @property
    def killed(self) -> list[int]:
        """Return the ranks that were killed."""
        return [rank for rank, tail in sorted(self._tails.items()) if tail.killed]

    def _find(self) -> None:
        with contextlib.suppress(UserError):
            for part in parts_of(self._job):
                if part.rank not in self._tails and not part.has_ended:
                    self._tails[part.rank] = Tail(part.directory)


def _process(number: int | None) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return None if number is None else psutil.Process(number)
    return None


def running_one(directories: list[Path]) -> Path:
    """Return the running one of several runs; a single run is returned unchecked."""
    if len(directories) == 1:
        return directories[0]
    found = [directory for directory in directories if _is_running(directory)]
    if not found:
        raise UserError("none of these runs is running: use charact recover for killed ones")
    if len(found) > 1:
        raise UserError(f"several programs are running: give one of {', '.join(map(str, found))}")
    return found[0]


def _is_running(directory: Path) -> bool:
    if is_job(directory):
        return any(part.is_being_written for part in parts_of(directory))
    return _process(writer_of(directory)) is not None


def watch_ranks(job: Path) -> None:
    """Show the ranks of a job until all have ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    tail = RanksTail(job)
    _show(tail, _Panel(None, ranks_panel, 1 + MOST_RANKS) if OUT.isatty() else _Lines(ranks_line))
    if tail.killed:
        show(f"charact: killed: rank {', '.join(map(str, tail.killed))}")
    if tail.ended:
        show(f"charact: the ranks have ended: their record is in {job.parent}, or is made by charact recover {job}")


def watch(directory: Path, *, of_run: bool) -> None:
    """Show a run until its program ends; a view that the run started shows nothing if it is too late."""
    held: int | None = None
    if of_run:
        held = lock(directory / PANEL) if (directory / PANEL).exists() else None
        if held is None:
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    tail = Tail(directory)
    try:
        _show(tail, _Panel(held, panel, NUM_LINES) if OUT.isatty() else _Lines(line))
    finally:
        if of_run:
            (directory / PANEL).unlink(missing_ok=True)
    if tail.killed:
        show(f"charact: the program was killed: complete its record with charact recover {directory}")


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _show(tail: "Tail | RanksTail", display: "_Lines | _Panel") -> None:
    """Read often, to see the end at once, and draw less often."""
    due_s = time.monotonic() + display.first_s
    try:
        while not tail.ended and OUT.lost is None:
            tail.read()
            if time.monotonic() >= due_s and not tail.ended:
                display.show(tail.state())
                due_s = time.monotonic() + display.every_s
            if display.wait(_READ_S):
                due_s = 0.0
    finally:
        display.close()


class _Lines:
    """Prints a line at intervals."""

    first_s = every_s = _LINE_S

    def __init__(self, text: Callable[[Any], str]) -> None:
        self._text = text

    def show(self, state: Any) -> None:
        show(f"charact: {self._text(state)}")

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def close(self) -> None:
        pass


class _Panel:
    """Draws at the bottom of the terminal, and releases it when the job is stopped or ends.

    `held` is the descriptor of a file with the text that restores the terminal if this process is killed.
    """

    first_s, every_s = 0.0, _DRAW_S

    def __init__(self, held: int | None, lines: Callable[[Any, Console], list[str]], num_lines: int) -> None:
        self._held, self._lines = held, lines
        self._bottom = BottomLines(1, num_lines)
        self._saved = ""
        signal.signal(signal.SIGTSTP, self._on_stop)
        # A change of size also ends the waiting: otherwise new lines would overwrite the panel.
        signal.signal(signal.SIGWINCH, lambda *_: None)
        self._changed, changes = os.pipe()
        for end in (self._changed, changes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(changes)

    def show(self, state: Any) -> None:
        self._bottom.draw(self._lines(state, Console(width=self._bottom.width, stderr=False)))
        if self._held is not None and self._saved != self._bottom.restoring:
            self._saved = self._bottom.restoring
            os.ftruncate(self._held, 0)
            os.pwrite(self._held, self._saved.encode(), 0)

    def wait(self, seconds: float) -> bool:
        """Wait, or until a signal such as a change of size arrives; return whether one did."""
        if not select.select([self._changed], [], [], seconds)[0]:
            return False
        os.read(self._changed, 1000)
        return True

    def close(self) -> None:
        self._bottom.release()

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        self._bottom.release()
        os.kill(os.getpid(), signal.SIGSTOP)
