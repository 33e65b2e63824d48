"""Windows of a long program, against the iterations that the reader of its event log finds."""

import copy
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charact.core.timeline import Iteration, host_and_device_ns
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.event_log_reader import read_event_log
from charact.measure.script.spans.iteration_segmenter import Segmenter
from charact.measure.script.spans.iterations import StepCounter
from charact.measure.script.spans.recorder import Kind, Slice, SpanRecorder
from charact.measure.script.windows import window_log, window_recorder
from charact.measure.script.windows.phase_times import PhaseTimes
from charact.measure.script.windows.repeats import Repeats
from charact.measure.script.windows.window import Window
from charact.measure.script.windows.window_log import read_latest, read_windows
from charact.measure.script.windows.window_recorder import WindowRecorder

SECOND_NS = 10**9
LENGTHS_NS = {"data": 30, "fwd": 100, "eval": 70, "loss": 10, "bwd": 200, "step": 50, "other": 40}
KINDS = {"data": Kind.FETCH, "last": Kind.EXHAUSTED, "fwd": Kind.FORWARD, "eval": Kind.FORWARD, "loss": Kind.LOSS,
         "bwd": Kind.BACKWARD, "step": Kind.STEP, "tidy": Kind.UPDATE, "comm": Kind.COMMUNICATION, "copy": Kind.COPY,
         "comp": Kind.COMPILE, "end": Kind.END}
OWNERS = {Kind.FETCH: 100, Kind.FORWARD: 1, Kind.STEP: 50}


def slices_of(text: str, unit_ns: int = 1000, device_factor: int | None = None) -> list[Slice]:
    """Slices, one a word: a point is a gap; `eval` is a forward without gradients; a number is the owner.

    With `device_factor`, each slice takes that many times as long on the device.
    """
    slices: list[Slice] = []
    now_ns = 0
    for word in text.split():
        name = word.strip("0123456789")
        end_ns = now_ns + LENGTHS_NS.get(name, 20) * unit_ns
        if name != ".":
            kind, device = KINDS[name], device_factor is not None
            slices.append(Slice(
                kind, now_ns, end_ns, int(word[len(name):] or OWNERS.get(kind, 0)), grad=name != "eval",
                training=name != "eval", ends=True, start_event=now_ns * device_factor if device else None,
                end_event=end_ns * device_factor if device else None))
        now_ns = end_ns
    return slices


STEP = "data . fwd loss bwd step . "
PROGRAMS = {
    "training": 60 * STEP,
    "loss by hand": 60 * "data fwd . bwd step tidy ",
    "accumulation": 30 * ("data fwd bwd " + STEP),
    "two optimizers": 30 * (STEP + "fwd2 loss bwd step51 "),
    "minibatches": 30 * ("data fwd bwd step fwd bwd step fwd bwd step "),
    "rollouts": "eval eval eval fwd bwd step fwd bwd step " * 40,
    "validation": 4 * (20 * STEP + "last " + 12 * "data eval . " + "last "),
    "long evaluation": 20 * STEP + 900 * "data eval . " + 20 * STEP,
    "inference": 800 * "data eval ",
    "without an optimizer": 400 * "fwd loss bwd . ",
}


REPEATED = (STEP, STEP, STEP, "data fwd . bwd step tidy ", "data fwd bwd " + STEP, "fwd loss bwd step ", "last ",
            "data9 fwd loss bwd step . ", STEP + "fwd2 loss bwd step51 ", "data eval . ", "eval ",
            "fwd3 loss bwd step ", "data fwd bwd step fwd bwd step ", "eval eval fwd bwd step fwd bwd step ",
            "fwd bwd . ", "end ")
"""Parts of programs that are repeated."""
NUM_KNOWN = {"minibatches": 60, "rollouts": 54}
"""Number of slices of programs with cycles, six of them, that the program had before."""


class Clock:
    """A clock that stands at the end of the slices that were taken."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def recorded(directory: Path, slices: list[Slice], steps: StepCounter | None = None, *, chunk: int = 50
             ) -> list[Window]:
    """Windows of a program from its slices."""
    clock = Clock()
    recorder = WindowRecorder(directory, steps or StepCounter(), lambda: (2**20, None), clock)
    for begin in range(0, len(slices), chunk):
        clock.now_ns = slices[begin:begin + chunk][-1].end_ns
        recorder.take(slices[begin:begin + chunk], int)
    recorder.close()
    return read_windows(directory)[0]


def totals(windows: Iterable[Window], training: bool) -> tuple[int, int, Counter[str]]:
    """Number of iterations of a mode, their time, and that of their phases."""
    phases: Counter[str] = Counter()
    for window in windows:
        phases.update({phase: times.sum_ns for phase, times in window.of(training).phases.items()})
    return (sum(window.of(training).num_iterations for window in windows),
            sum(window.of(training).wall.sum_ns for window in windows), +phases)


def whole(iterations: Iterable[Iteration]) -> tuple[int, int, Counter[str]]:
    iterations, phases = list(iterations), Counter[str]()
    for each in iterations:
        times = host_and_device_ns(each, lambda interval: interval.phase, "other")
        phases.update({phase: host if device is None else device for phase, (host, device) in times.items()})
    return len(iterations), sum(each.duration_ns for each in iterations), +phases


@pytest.mark.parametrize("device_factor", [None, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_windows_have_the_iterations_that_the_event_log_has(tmp_path: Path, name: str, device_factor: int | None
                                                            ) -> None:
    slices = slices_of(PROGRAMS[name], device_factor=device_factor)
    EventLogWriter(tmp_path).slices(slices, int)
    log = read_event_log(tmp_path)
    steps = StepCounter()  # it has seen the program before
    for each in slices[:NUM_KNOWN.get(name, 0)]:
        act = {Kind.FETCH: steps.fetch, Kind.STEP: steps.step}.get(each.kind)
        if act is not None:
            act()
        elif not each.grad:
            steps.infer()
    windows = recorded(tmp_path, slices, steps)
    first_mode = log.iterations[0].training
    for training in (True, False):
        expected = whole(each for each in log.iterations[1:] if each.training == training)  # the first is cut
        assert totals(windows, training) == expected
    assert totals(windows, first_mode)[0] > 10


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(words=st.lists(st.sampled_from(["data", "fwd", "eval", "loss", "bwd", "step", "tidy", "comm", "copy", "comp",
                                       "last", "step51", "end", "."]), max_size=80), device=st.booleans())
def test_the_phases_of_an_order_are_those_of_its_iteration(words: list[str], device: bool) -> None:
    slices = slices_of(" ".join(words), device_factor=2 if device else None)
    segmenter, times = Segmenter(ends_marked="end" in words), PhaseTimes()
    for segment in [*segmenter.segments(slices), *segmenter.last_segments()]:
        for _ in range(2):  # computed, and remembered
            assert whole([segment.iteration()])[1:] == (times.of(segment).wall_ns, +Counter(times.of(segment).phase_ns))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.tuples(st.integers(1, 30), st.sampled_from([*REPEATED])), min_size=1, max_size=6),
       chunk=st.sampled_from([7, 50, 400]), device_factor=st.sampled_from([None, 3]))
def test_repeats_are_counted_like_iterations_one_by_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[tuple[int, str]], chunk: int,
        device_factor: int | None) -> None:
    slices = slices_of("".join(number * part for number, part in parts), device_factor=device_factor)
    for place, each in enumerate(slices):  # no two times are equal
        each.end_ns = max(each.start_ns, each.end_ns - place % 997)

    def modes(fewest: int) -> list[tuple[object, object]]:
        monkeypatch.setattr(window_recorder, "_FEWEST_REPEATS", fewest)
        directory = Path(tempfile.mkdtemp(dir=tmp_path))
        return [(each.train, each.infer) for each in recorded(directory, copy.deepcopy(slices), chunk=chunk)]

    assert modes(4) == modes(len(slices))


def test_most_iterations_of_a_regular_program_are_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    class Counted(Repeats):
        def __init__(self, slices: list[Slice], num_slices: int) -> None:
            super().__init__(slices, num_slices)
            numbers.append(self.number)

    monkeypatch.setattr(window_recorder, "Repeats", Counted)
    windows = recorded(tmp_path, slices_of(2000 * STEP), chunk=503)
    assert totals(windows, training=True)[0] == 1999  # the first is cut
    assert sum(numbers) > 1750


def test_a_long_evaluation_does_not_fill_the_memory() -> None:
    segmenter = Segmenter()
    longest, ended = 0, 0
    for each in slices_of(3 * STEP + 5000 * "data eval " + 3 * STEP):
        ended += len(segmenter.segments([each]))
        longest = max(longest, len(segmenter.pending))
    assert longest < 600
    assert ended + len(segmenter.last_segments()) == 5006


def test_neighbours_are_merged_so_that_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_log, "MOST_WINDOWS", 16)
    monkeypatch.setattr(window_log, "WINDOW_NS", 2_000_000)  # of some four iterations
    slices = slices_of(1000 * STEP)
    windows = recorded(tmp_path, slices, chunk=6)
    assert 8 <= len(windows) <= 16
    assert totals(windows, True)[0] == 999
    lengths = [each.end_ns - each.start_ns for each in windows[:-1]]
    assert max(lengths) < 2 * min(lengths)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(windows))
    assert windows[-1].rss_bytes == 2**20


def test_a_slow_down_is_in_the_windows_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_log, "WINDOW_NS", 50_000_000)
    monkeypatch.setitem(LENGTHS_NS, "bwd", 200)
    fast = slices_of(1000 * STEP)
    monkeypatch.setitem(LENGTHS_NS, "bwd", 242)  # an iteration takes 10 % longer
    slow = slices_of(1000 * STEP)
    shift_ns = fast[-1].end_ns + 20_000
    for each in slow:
        each.start_ns, each.end_ns = each.start_ns + shift_ns, each.end_ns + shift_ns
    windows = recorded(tmp_path, fast + slow)
    medians = [each.train.wall.quantile_ns(0.5, each.train.num_iterations) for each in windows]
    phases = [each.train.phases["backward"].quantile_ns(0.5, each.train.num_iterations) for each in windows]
    assert medians[0] == pytest.approx(430_000, rel=0.01)
    assert medians[-1] == pytest.approx(472_000, rel=0.01)
    assert [phases[0], phases[-1]] == pytest.approx([200_000, 242_000], rel=0.01)


def drive(recorder: SpanRecorder, num_iterations: int) -> None:
    """Iterations without work: a fetch and a step."""
    for _ in range(num_iterations):
        recorder.enter(Kind.FETCH, 100)
        recorder.leave()
        recorder.enter(Kind.STEP, 50)
        recorder.leave()


def test_300_000_iterations_take_little_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_log, "WINDOW_NS", 10_000_000)
    monkeypatch.setattr(window_log, "MOST_WINDOWS", 64)
    recorder = SpanRecorder()
    recorder.on = True
    windows = WindowRecorder(tmp_path, StepCounter(), lambda: (None, None))
    for _ in range(600):
        drive(recorder, 500)
        windows.take(recorder.take(), int)
    assert len(windows._segmenter.pending) < 10
    windows.close()
    written, _, _ = read_windows(tmp_path)
    assert totals(written, True)[0] == 299_999
    assert len(written) <= 64
    assert (tmp_path / window_log.WINDOWS).stat().st_size < 500_000


KILLED = """
import sys, time
from pathlib import Path
from charact.measure.script.spans.iterations import StepCounter
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.measure.script.windows import window_log, window_recorder
from charact.measure.script.windows.window_recorder import WindowRecorder

window_log.WINDOW_NS = 20_000_000
recorder, number = SpanRecorder(), 0
recorder.on = True
windows = WindowRecorder(Path(sys.argv[1]), StepCounter(), lambda: (None, None))
while True:
    recorder.enter(Kind.FETCH, 100)
    recorder.leave()
    recorder.enter(Kind.STEP, 50)
    recorder.leave()
    windows.take(recorder.take(), int)
    number += 1
    print(number, time.perf_counter_ns(), flush=True)
"""


def test_a_kill_loses_at_most_a_window(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    times = {}
    for line in child.stdout:
        number, time_ns = map(int, line.split())
        times[number] = time_ns
        if len(times) > 1 and time_ns - times[1] > 250_000_000:
            break
    os.kill(child.pid, signal.SIGKILL)
    for line in child.stdout:  # what it had printed before; the last line may be cut off
        number, time_ns = map(int, line.split()) if line.endswith("\n") else (number, time_ns)
        times[number] = time_ns
    child.stdout.close()
    child.wait()
    windows, _, lost_bytes = read_windows(tmp_path)
    assert lost_bytes == 0
    assert len(windows) >= 5
    longest_ns = max(after - before for before, after in pairwise(times.values()))
    assert times[number] - windows[-1].end_ns < 20_000_000 + 3 * longest_ns + 20_000_000
    recorded_until = max(each for each, time_ns in times.items() if time_ns <= windows[-1].end_ns)
    assert abs(totals(windows, True)[0] - recorded_until) <= 3


def test_the_last_seconds_are_there_while_the_program_runs(tmp_path: Path) -> None:
    clock = Clock()
    recorder = WindowRecorder(tmp_path, StepCounter(), lambda: (None, None), clock)
    slices = slices_of(3000 * STEP, unit_ns=10_000)  # 4.3 ms each
    for begin in range(0, len(slices), 5):
        clock.now_ns = slices[begin + 4].end_ns
        recorder.take(slices[begin:begin + 5], int)
    latest = read_latest(tmp_path)
    assert latest is not None
    assert len(latest.seconds) == 10
    assert 2750 < latest.num_iterations < 3000
    last = latest.seconds[-1]
    assert sum(last.phase_ns.values()) == last.num_iterations * 4_300_000
    assert last.phase_ns["backward"] == last.num_iterations * 2_000_000


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), damage=st.binary(min_size=1, max_size=30))
def test_any_damage_leaves_windows_as_they_were(tmp_path: Path, place: float, damage: bytes) -> None:
    log = window_log.WindowLog(tmp_path)
    path = tmp_path / window_log.WINDOWS
    path.unlink(missing_ok=True)
    written = [Window(10 * number, 10 * number + 10, rss_bytes=number) for number in range(6)]
    for window in written:
        window.train.add(5, {"forward": 3, "other": 2})
        log.append(window)
    content = path.read_bytes()
    begin = int(place * len(content))
    path.write_bytes(content[:begin] + damage + content[begin + len(damage):])
    found, num_bytes, lost_bytes = read_windows(tmp_path)
    num_before = content[:begin].count(b"\n")
    assert found[:num_before] == written[:num_before]
    assert num_bytes + lost_bytes <= path.stat().st_size
    for window in found:
        assert window.is_valid


def test_damage_leaves_the_windows_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_log, "WINDOW_NS", 20_000_000)
    windows = recorded(tmp_path, slices_of(1000 * STEP))
    path = tmp_path / window_log.WINDOWS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b'{"start_ns": 5}\n', *lines[4:]]))
    found, num_bytes, lost_bytes = read_windows(tmp_path)
    assert found == windows[:3]
    assert (num_bytes, lost_bytes) == (sum(map(len, lines[:3])), path.stat().st_size - sum(map(len, lines[:3])))
    assert "windows.jsonl is damaged" in str(read_event_log(tmp_path).damage[window_log.WINDOWS])
    path.write_bytes(b"".join(lines)[:-5])  # a kill while it was written
    assert read_windows(tmp_path)[::2] == (windows[:-1], 0)
