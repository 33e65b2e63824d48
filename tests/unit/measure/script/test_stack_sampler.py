"""The stack sampler: where it finds a program, when it looks, whether the program waits, and loops in its code."""

import gc
import importlib
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess, run
from sys import _getframe
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import charact
from charact.core.timeline import Iteration
from charact.measure.script.program.events import ProgramEvents
from charact.measure.script.program.frames import _LIBRARIES, frames_from, line_of, location_of
from charact.measure.script.spans import stack_sampler
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.event_log_reader import EventLogReader
from charact.measure.script.spans.frame_samples import Samples
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.measure.script.spans.stack_sampler import CodeLoops, FrameSampler, ThreadClock

pytestmark = pytest.mark.clock
MATRIX = torch.ones(512, 512)


@contextmanager
def sampler(directory: Path, kind: Kind | None = None, *, on: bool = True) -> Iterator[FrameSampler]:
    """Sample this thread, inside a span of a kind."""
    recorder = SpanRecorder()
    recorder.on = on
    if kind is not None:
        recorder.enter(kind)
    sampler = FrameSampler(recorder, EventLogWriter(directory))
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def places(directory: Path) -> Counter[tuple[str, str | None]]:
    """How often each function and library were seen."""
    notes = EventLogReader(directory).notes()
    known = [tuple(place) for note in notes for place in note["places"]]
    return Counter(known[number][1:] for note in notes for _, number in note["samples"])


def wait_in_a_library() -> CompletedProcess[bytes]:
    return run(["sleep", "0.2"], check=True)


def wait_here() -> None:
    time.sleep(0.2)


def location_here(depth: int = 1) -> Any:
    return location_of(frames_from(_getframe(depth)))


class TestPlaces:
    def test_an_own_line_is_the_innermost_and_a_library_call_the_outermost(self) -> None:
        def look(_: str) -> Any:
            return location_here()

        place, function, library = look("")
        assert place.endswith(f"test_stack_sampler.py:{look.__code__.co_firstlineno + 1}")
        assert function.endswith("look")
        assert library is None

    def test_instructions_without_a_line_belong_to_the_function(self) -> None:
        code = compile("def f():\n    pass\n", "/somewhere/own.py", "exec").co_consts[0]
        frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_globals={"__name__": "own"})
        location = location_of([frame])
        assert location == ("/somewhere/own.py:1", "f", None)
        assert line_of([frame], location)[1] == (code, 1)

    @pytest.mark.parametrize(("file", "is_program"), [
        ("machine/load.py", False), ("measure/script/hooks/patches.py", True)])
    def test_charact_s_own_work_is_no_place_of_the_program(self, file: str, is_program: bool) -> None:
        found = []
        code = compile("look()", str(Path(charact.__file__).parent / file), "exec")
        exec(code, {"__name__": "charact.part", "look": lambda: found.append(location_here(2))})
        assert (found[0] is not None) is is_program

    def test_a_layer_of_a_library_has_its_own_name_not_that_of_what_calls_every_layer(self) -> None:
        found: list[Any] = []
        folder = "/usr/lib/python3/dist-packages/torch/nn/modules"
        layer: dict[str, Any] = {"__name__": "torch.nn.modules.linear",
                                 "look": lambda: found.append(location_here(2))}
        exec(compile("def forward(x):\n    look()", f"{folder}/linear.py", "exec"), layer)
        caller: dict[str, Any] = {"__name__": "torch.nn.modules.module", "forward": layer["forward"]}
        exec(compile("def _call(x):\n    forward(x)", f"{folder}/module.py", "exec"), caller)
        caller["_call"](1)
        assert found[0][2] == "torch.nn.modules.linear.forward"

    @pytest.mark.parametrize("is_package", [False, True])
    def test_an_import_has_the_name_of_the_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  is_package: bool) -> None:
        """If a function of a library imports, it is at the library's line."""
        found: list[Any] = []
        folder = tmp_path / "site-packages" if is_package else tmp_path
        folder.mkdir(exist_ok=True)
        (folder / "outer_module.py").write_text("def create():\n    import inner_module\n" if is_package
                                                else "import inner_module\n")
        (folder / "inner_module.py").write_text("from builtins import look_at_stack\nlook_at_stack()\n")
        monkeypatch.syspath_prepend(folder)
        if not is_package:
            monkeypatch.setattr("charact.measure.script.program.frames._LIBRARIES", (str(tmp_path), *_LIBRARIES))
        monkeypatch.setattr("builtins.look_at_stack", lambda: found.append(location_here(2)), raising=False)
        for name in ("outer_module", "inner_module"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module("outer_module")
        if is_package:
            module.create()
            assert found == [("outer_module.py:2", "create", "importing inner_module")]
        else:
            assert found[0][2] == "importlib.import_module, importing outer_module"


class TestSampling:
    def test_time_outside_of_spans_is_seen_where_it_goes(self, tmp_path: Path) -> None:
        with sampler(tmp_path) as watching:
            wait_in_a_library()
            wait_here()
        watching.check()
        counts = places(tmp_path)
        assert counts.total() > 10
        assert counts["wait_in_a_library", "subprocess.run"] / counts.total() == pytest.approx(0.5, abs=0.2)
        assert counts["wait_here", None] / counts.total() == pytest.approx(0.5, abs=0.2)

    @pytest.mark.parametrize("kind", [Kind.FETCH, Kind.FORWARD, Kind.LOSS, Kind.UPDATE])
    def test_what_loads_a_batch_or_computes_with_it_is_sampled(self, tmp_path: Path, kind: Kind) -> None:
        with sampler(tmp_path, kind):
            wait_here()
        assert set(places(tmp_path)) == ({("wait_here", None)} if kind is not Kind.UPDATE else set())

    def test_it_ends_after_the_most_samples(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("charact.measure.script.spans.stack_sampler.MAX_SAMPLES", 3)
        with sampler(tmp_path):
            wait_here()
        assert places(tmp_path).total() == 3

    def test_nothing_is_sampled_while_nothing_is_recorded(self, tmp_path: Path) -> None:
        with sampler(tmp_path, on=False):
            wait_here()
        assert not places(tmp_path)
        assert EventLogReader(tmp_path).notes()[0]["note"] == "frames"  # there was a sampler

    def test_samples_are_written_while_it_runs_and_an_error_ends_the_thread(
            self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("charact.measure.script.spans.stack_sampler._LONGEST_S", 0.1)
        (directory := tmp_path / "log").mkdir()
        recorder = SpanRecorder()
        recorder.on = True
        watching = FrameSampler(recorder, EventLogWriter(directory))
        watching.start()
        limit = time.monotonic() + 30
        while not places(directory) and time.monotonic() < limit:
            time.sleep(0.05)
        assert places(directory)
        directory.rename(tmp_path / "gone")
        (thread,) = (each for each in threading.enumerate() if each.name == "charact-sampler")
        thread.join(30)
        assert not thread.is_alive()
        with pytest.raises(Exception, match="log"):
            watching.check()


def compute_in_python(num_steps: int) -> None:
    for _ in range(num_steps):
        pass


def release_the_gil(num_steps: int, data: bytes = bytes(10_000_000)) -> None:
    zlib.crc32(memoryview(data)[:num_steps])


def keep_the_gil(num_steps: int) -> None:
    sum(range(num_steps))


def steps_of(work: Callable[[int], None], seconds: float) -> int:
    """Number of steps that take a time."""
    def of_steps(number: int) -> float:
        before_s = time.thread_time()
        work(number)
        return time.thread_time() - before_s

    return round(seconds * 100_000 / min(of_steps(100_000) for _ in range(20)))


@pytest.mark.skipif(sys.platform != "linux", reason="the timer's slack can be shortened on Linux only")
@pytest.mark.parametrize(("work", "in_python_s", "work_s"), [
    (release_the_gil, 0.003, 0.0008), (keep_the_gil, 0.003, 0.0008),
    pytest.param(keep_the_gil, 0.004, 0.015, marks=pytest.mark.slow)])
def test_a_line_has_the_samples_of_its_time_whether_it_releases_the_gil_or_not(
        tmp_path: Path, work: Callable[[int], None], in_python_s: float, work_s: float) -> None:
    in_python, steps = steps_of(compute_in_python, in_python_s), steps_of(work, work_s)
    spent_s = {compute_in_python: 0.0, work: 0.0}
    with sampler(tmp_path):
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            for call, number in ((compute_in_python, in_python), (work, steps)):
                before_s = time.perf_counter()
                call(number)
                spent_s[call] += time.perf_counter() - before_s
    counts = Counter[str]()
    for (function, _), count in places(tmp_path).items():
        counts[function] += count
    num_samples = counts[work.__name__] + counts["compute_in_python"]
    assert num_samples > 100
    share = spent_s[work] / sum(spent_s.values())
    error = 4 * (share * (1 - share) / num_samples) ** 0.5
    # Where threads wake up late, a call that releases the GIL also has samples of the moment before it.
    late = 0.15 if work is release_the_gil else 0.0
    assert counts[work.__name__] / num_samples == pytest.approx(share, abs=error + late)
    assert sys.getswitchinterval() > 0.001


def compute_here() -> None:
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass


def collect_all() -> float:
    begun_s = time.perf_counter()
    gc.collect()
    return time.perf_counter() - begun_s


@pytest.mark.slow_variants
@pytest.mark.parametrize("pause", [wait_here, compute_here])
def test_a_garbage_collection_belongs_to_the_line_that_causes_it(tmp_path: Path, pause: Callable[[], None]
                                                                  ) -> None:
    kept, events = [[number] for number in range(1_000_000)], ProgramEvents()
    gc.callbacks.append(events.collection)
    try:
        with sampler(tmp_path) as watching:
            begun_s = time.perf_counter()
            spent_s = sum(collect_all() for _ in range(10) if pause() is None)
            all_s = time.perf_counter() - begun_s
    finally:
        gc.callbacks.remove(events.collection)
    watching.check()
    counts = places(tmp_path)
    assert len(kept) == 1_000_000
    in_collections = sum(count for (function, _), count in counts.items() if function == "collect_all")
    assert in_collections / counts.total() == pytest.approx(spent_s / all_s, rel=0.4)


class TestWaiting:
    @pytest.mark.parametrize(("sleep_s", "num_terms"), [(0.03, 2_000_000), (0.2, 10_000_000)])
    def test_a_line_that_sleeps_waits_and_one_that_computes_does_not(self, tmp_path: Path, sleep_s: float,
                                                                     num_terms: int) -> None:
        """The sum keeps the GIL, also for several samples."""
        waits, computes = f"time.sleep({sleep_s})", f"sum(range({num_terms}))"
        text = (f"import time\ndef both(until_s):\n    while time.monotonic() < until_s:\n        {waits}\n"
                f"        {computes}\n")
        (tmp_path / "own.py").write_text(text)
        program: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, str(tmp_path / "own.py"), "exec"), program)
        with sampler(tmp_path):
            program["both"](time.monotonic() + 2)
        whole = [Iteration(0, 2**62, [])]
        facts = Samples(EventLogReader(tmp_path).notes()).facts(whole, whole, {"other": 1.0})
        assert facts is not None
        shares = {frame.text: frame.waiting_frac or 0.0 for frame in facts.frames}
        assert shares[waits] > 0.6
        assert shares[computes] < 0.3

    @pytest.mark.parametrize(("work", "least", "most"), [
        (lambda: time.sleep(0.02), 0.7, 1.0), (lambda: sum(range(10_000)), 0.0, 0.3),
        (lambda: MATRIX @ MATRIX, 0.0, 0.3)])
    def test_another_thread_sees_whether_one_waits(self, work: Callable[[], object], least: float, most: float
                                                   ) -> None:
        """One that computes does not, also while all cores are busy, or in an operator of several threads."""
        clock, shares = ThreadClock(), list[float]()

        def watch() -> None:
            for _ in range(9):
                before = clock.read()
                time.sleep(0.03)
                after = clock.read()
                assert before is not None
                assert after is not None
                shares.append(clock.waiting_frac(before, after))

        watcher = threading.Thread(target=watch)
        watcher.start()
        while watcher.is_alive():
            work()
        assert least <= sorted(shares)[len(shares) // 2] <= most


def straight(values: list[float]) -> float:
    total = sum(values)
    return total


def looping(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def train(step: Callable[[int], None]) -> int:
    total = 0
    for epoch in range(2):
        for batch in range(3):
            for value in range(batch):
                total += value
            step(epoch)
    return total


class TestLoops:
    @pytest.mark.parametrize(("function", "offset", "expected"), [
        (straight, 1, False), (looping, 1, False), (looping, 3, True), (looping, 4, False)])
    def test_lines_in_a_loop_are_told_apart(self, function: Any, offset: int, expected: bool) -> None:
        code = function.__code__
        assert CodeLoops().is_inside(code, code.co_firstlineno + offset) is expected

    @pytest.mark.parametrize(("num_before", "offsets"), [(0, [4, 5]), (2, [4, 5]), (3, [3, 4, 5, 6])])
    def test_loops_over_the_first_iterations_do_not_count(self, num_before: int, offsets: list[int]) -> None:
        loops = CodeLoops()
        assert not loops.are_known
        for _ in range(num_before):
            loops.note("step")
        train(lambda _: loops.note("step"))
        assert loops.are_known
        code, first = train.__code__, train.__code__.co_firstlineno
        inside = [offset for offset in range(1, 8) if loops.is_inside(code, first + offset)]
        assert set(offsets) <= set(inside)
        assert (6 in inside) is (num_before == 3)


@pytest.mark.parametrize(("num_lines", "is_sampled"), [(0, True), (1, False)])
def test_a_program_that_runs_on_while_its_stack_is_read_gives_no_sample(
        num_lines: int, is_sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of such a stack, inner functions have ended, and outer ones are at later lines."""
    def program() -> Iterator[None]:
        yield
        yield

    running: Any = program()
    next(running)

    def location(frame: Any) -> tuple[str, str, None]:
        for _ in range(num_lines):
            next(running)
        return "net.py:1", "program", None

    recorder = SpanRecorder()
    watching = FrameSampler(recorder, EventLogWriter(tmp_path))
    monkeypatch.setattr(stack_sampler, "location_of", location)
    monkeypatch.setattr(watching, "_frames_at", lambda due_s: [running.gi_frame])
    monkeypatch.setattr(watching, "_stack", SimpleNamespace(read=lambda most: ([running.gi_frame], [])))
    recorder.enter(Kind.FORWARD)
    assert (watching._look(0.0) is not None) == is_sampled
