"""Which of several runs `charact watch` shows, and what it shows of it."""

import os
from pathlib import Path

import pytest

from charact.commands._shared.watching import Tail, running_one
from charact.core.errors import UserError
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.recorder import Kind, Slice
from charact.measure.script.windows.window_log import Latest, Second, WindowLog
from charact.record.in_progress import LOCK, begin_run


def run_of(directory: Path, process: int) -> Path:
    directory.mkdir()
    (directory / LOCK).write_text(str(process))
    return directory


GONE = 999999999  # no process has such a number


def test_the_one_that_goes_on_is_found_among_killed_ones(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "a", GONE), run_of(tmp_path / "b", os.getpid()), run_of(tmp_path / "c", GONE)]
    assert running_one(runs) == tmp_path / "b"
    assert running_one(runs[:1]) == tmp_path / "a"  # watching tells what became of it


def test_several_or_none_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "a", os.getpid()), run_of(tmp_path / "b", os.getpid())]
    with pytest.raises(UserError, match=f"give one of {tmp_path}/a, {tmp_path}/b"):
        running_one(runs)
    killed = [run_of(tmp_path / "c", GONE), run_of(tmp_path / "d", GONE)]
    with pytest.raises(UserError, match="none of these runs is running: use charact recover"):
        running_one(killed)


def test_a_program_is_watched_on_after_its_event_log_is_full(tmp_path: Path) -> None:
    run = begin_run(tmp_path, "train.py", {"options": {"script": "train.py"}})
    kinds = [Kind.FETCH, Kind.FORWARD, Kind.BACKWARD, Kind.STEP]
    slices = [Slice(kind, 10_000_000 * place, 10_000_000 * (place + 1), 7, ends=True)
              for place, kind in enumerate(25 * kinds)]
    EventLogWriter(run.directory).slices(slices, int)
    tail = Tail(run.directory)
    tail.read()
    before = tail.state()
    assert before.speed is not None
    assert (before.num_iterations, before.speed.median_s) == (24, pytest.approx(0.04))  # the last may go on
    WindowLog(run.directory).write_latest(Latest(1000, [
        Second(True, 10**9 * (number + 1), 20, {"data": 15 * 10**8 // 2, "backward": 25 * 10**7})
        for number in range(10)]))
    tail.read()
    after = tail.state()
    assert after.speed is not None
    assert (after.num_iterations, after.speed.median_s) == (1025, pytest.approx(0.05))
    assert (after.speed.bottleneck, after.speed.share_frac["data"]) == ("data", pytest.approx(0.75))
    assert after.since_s < 1
    os.close(run.lock)
