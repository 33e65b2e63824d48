"""The sampler of `--sample`: where it finds a program, when it looks, and which samples are of `other`."""

import gc
import importlib
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, run
from sys import _getframe
from types import SimpleNamespace
from typing import Any

import pytest

import charact
from charact.core.timeline import Interval, Iteration
from charact.measure.script.program.events import ProgramEvents
from charact.measure.script.program.frames import _LIBRARIES, line_of, location_of
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.event_log_reader import EventLogReader
from charact.measure.script.spans.frame_samples import NUM_KEPT, Samples
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.measure.script.spans.stack_sampler import INTERVAL_S, SPARSE_INTERVAL_S, FrameSampler
from charact.record.manifest_passes import Frame

pytestmark = pytest.mark.clock


def sampled(directory: Path) -> list[dict[str, Any]]:
    return EventLogReader(directory).notes()


def places(notes: list[dict[str, Any]]) -> dict[tuple[str, str | None], int]:
    """How often each function and library were seen."""
    known = [tuple(place) for note in notes for place in note["places"]]
    counts: dict[tuple[str, str | None], int] = {}
    for note in notes:
        for _, number in note["samples"]:
            key = known[number][1:]
            counts[key] = counts.get(key, 0) + 1
    return counts


def wait_in_a_library() -> CompletedProcess[bytes]:
    return run(["sleep", "0.2"], check=True)


def wait_here() -> None:
    time.sleep(0.2)


def test_a_place_is_the_innermost_own_line_and_the_outermost_library_call() -> None:
    found = []

    def look(_: str) -> str:
        found.append(location_of(_getframe()))
        return ""

    look("")
    place, function, library = found[0]
    assert place.endswith(f"test_stack_sampler.py:{look.__code__.co_firstlineno + 1}")
    assert function.endswith("look")
    assert library is None


def test_instructions_without_a_line_belong_to_the_function() -> None:
    code = compile("def f():\n    pass\n", "/somewhere/own.py", "exec").co_consts[0]
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_back=None, f_globals={"__name__": "own"}, f_locals={})
    location = location_of(frame)  # type: ignore[arg-type]
    assert location == ("/somewhere/own.py:1", "f", None)
    assert line_of(frame, location)[1] == (code, 1)  # type: ignore[arg-type]


def test_charact_s_own_work_is_no_place_of_the_program() -> None:
    package = Path(charact.__file__).parent
    found = []

    def look_from(file: Path) -> None:
        code = compile("look()", str(file), "exec")
        exec(code, {"__name__": "charact.part", "look": lambda: found.append(location_of(_getframe().f_back))})

    look_from(package / "machine/load.py")
    look_from(package / "measure/script/hooks/patches.py")  # the program's own calls run below these
    assert found[0] is None
    assert found[1] is not None
    assert found[1][1].endswith("look_from")


def test_time_outside_of_spans_is_seen_where_it_goes(tmp_path: Path) -> None:
    recorder = SpanRecorder()
    recorder.on = True
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    sampler.start()
    wait_in_a_library()
    wait_here()
    sampler.stop()
    sampler.check()
    counts = places(sampled(tmp_path))
    total = sum(counts.values())
    assert total > 10
    assert counts["wait_in_a_library", "subprocess.run"] / total == pytest.approx(0.5, abs=0.2)
    assert counts["wait_here", None] / total == pytest.approx(0.5, abs=0.2)


def test_it_ends_when_it_has_seen_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("charact.measure.script.spans.stack_sampler.MAX_SAMPLES", 3)
    recorder = SpanRecorder()
    recorder.on = True
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    sampler.start()
    wait_here()
    sampler.stop()
    assert sum(len(note["samples"]) for note in sampled(tmp_path)) == 3


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
    recorder = SpanRecorder()
    recorder.on = True
    in_python, steps = steps_of(compute_in_python, in_python_s), steps_of(work, work_s)
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    spent_s = {compute_in_python: 0.0, work: 0.0}
    sampler.start()
    until_s = time.monotonic() + 2
    while time.monotonic() < until_s:
        for call, number in ((compute_in_python, in_python), (work, steps)):
            before_s = time.perf_counter()
            call(number)
            spent_s[call] += time.perf_counter() - before_s
    sampler.stop()
    counts = Counter[str]()
    for (function, _), count in places(sampled(tmp_path)).items():
        counts[function] += count
    num_samples = counts[work.__name__] + counts["compute_in_python"]
    assert num_samples > 100
    share = spent_s[work] / sum(spent_s.values())
    error = 4 * (share * (1 - share) / num_samples) ** 0.5
    # Where threads wake up late, a call that releases the GIL also has samples of the moment before it.
    late = 0.15 if work is release_the_gil else 0.0
    assert counts[work.__name__] / num_samples == pytest.approx(share, abs=error + late)
    assert sys.getswitchinterval() > 0.001


@pytest.mark.parametrize("kind", [Kind.FETCH, Kind.FORWARD, Kind.LOSS])
def test_what_loads_a_batch_or_computes_with_it_is_sampled(tmp_path: Path, kind: Kind) -> None:
    recorder = SpanRecorder()
    recorder.on = True
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    recorder.enter(kind)
    sampler.start()
    wait_here()
    sampler.stop()
    assert set(places(sampled(tmp_path))) == {("wait_here", None)}


def test_a_layer_of_a_library_has_its_own_name_not_that_of_what_calls_every_layer() -> None:
    found = []
    code = compile("def forward(x):\n    look()", "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", "exec")
    layer: dict[str, Any] = {"__name__": "torch.nn.modules.linear", "look": lambda: found.append(location_of(
        _getframe(1)))}
    exec(code, layer)
    code = compile("def _call(x):\n    forward(x)", "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", "exec")
    caller: dict[str, Any] = {"__name__": "torch.nn.modules.module", "forward": layer["forward"]}
    exec(code, caller)
    caller["_call"](1)
    assert found[0] is not None
    assert found[0][2] == "torch.nn.modules.linear.forward"


def test_an_import_has_the_name_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    (tmp_path / "outer_module.py").write_text("import inner_module\n")
    (tmp_path / "inner_module.py").write_text("from builtins import look_at_stack\nlook_at_stack()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("charact.measure.script.program.frames._LIBRARIES", (str(tmp_path), *_LIBRARIES))
    monkeypatch.setattr("builtins.look_at_stack", lambda: found.append(location_of(_getframe(1))), raising=False)
    for name in ("outer_module", "inner_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("outer_module")
    assert found[0][2] == "importlib.import_module, importing outer_module"


def test_an_import_by_a_function_of_a_library_is_at_the_library_s_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                       ) -> None:
    found: list[Any] = []
    packages = tmp_path / "site-packages"
    (packages / "lazy").mkdir(parents=True)
    (packages / "lazy" / "__init__.py").write_text("def create():\n    import lazy.slow\n")
    (packages / "lazy" / "slow.py").write_text("from builtins import look_at_stack\nlook_at_stack()\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr("builtins.look_at_stack", lambda: found.append(location_of(_getframe(1))), raising=False)
    lazy = importlib.import_module("lazy")
    lazy.create()
    assert found == [("lazy/__init__.py:2", "create", "importing lazy.slow")]


def test_nothing_is_looked_for_when_nothing_is_recorded(tmp_path: Path) -> None:
    recorder = SpanRecorder()
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    sampler.start()
    wait_here()
    sampler.stop()
    assert places(sampled(tmp_path)) == {}
    assert sampled(tmp_path)[0]["note"] == "frames"  # which tells that there was a sampler


def test_samples_are_written_while_it_runs(tmp_path: Path) -> None:
    recorder = SpanRecorder()
    recorder.on = True
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    sampler.start()
    limit = time.monotonic() + 30
    while not places(sampled(tmp_path)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert places(sampled(tmp_path))
    sampler.stop()


def test_an_error_ends_the_thread_and_is_told_to_who_asks(tmp_path: Path) -> None:
    recorder = SpanRecorder()
    recorder.on = True
    (tmp_path / "spool").mkdir()
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path / "spool"))
    sampler.start()
    (tmp_path / "spool").rename(tmp_path / "gone")
    (thread,) = (each for each in threading.enumerate() if each.name == "charact-sampler")
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(Exception, match="spool"):
        sampler.check()


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
    recorder, kept = SpanRecorder(), [[number] for number in range(1_000_000)]
    recorder.on = True
    sampler, events = FrameSampler(recorder, EventLogWriter(tmp_path)), ProgramEvents()
    gc.callbacks.append(events.collection)
    try:
        sampler.start()
        begun_s = time.perf_counter()
        spent_s = sum(collect_all() for _ in range(10) if pause() is None)
        all_s = time.perf_counter() - begun_s
    finally:
        sampler.stop()
        gc.callbacks.remove(events.collection)
    sampler.check()
    counts = places(sampled(tmp_path))
    assert len(kept) == 1_000_000
    in_collections = sum(count for (function, _), count in counts.items() if function == "collect_all")
    assert in_collections / sum(counts.values()) == pytest.approx(spent_s / all_s, rel=0.4)


def iteration(start_ns: int, end_ns: int, *intervals: tuple[str, int, int]) -> Iteration:
    return Iteration(start_ns, end_ns, [Interval(phase, start, end, 0) for phase, start, end in intervals])


def samples(*times_ns: int) -> Samples:
    return Samples([{"places": [["a.py:1", "f", None], ["a.py:2", "f", "library.g"]],
                     "samples": [[time_ns, time_ns % 2] for time_ns in times_ns]}])


def test_only_what_lies_in_an_iteration_and_in_no_phase_is_other() -> None:
    iterations = [iteration(100, 200, ("forward", 110, 150)), iteration(300, 400, ("loss", 300, 320))]
    facts = samples(50, 100, 101, 110, 149, 151, 199, 200, 250, 310, 321, 400).facts(
        iterations, [iteration(0, 60), *iterations], {"other": 0.01, "data": 0.0, "outside": 0.0})
    assert facts is not None
    assert facts.interval_s == INTERVAL_S
    assert facts.num_samples == 5  # 100, 101, 151, 199 and 321
    assert facts.frames == [Frame("a.py:2", "f", 4, "library.g"), Frame("a.py:1", "f", 1)]
    assert facts.num_data_samples == 0
    assert facts.num_outside_samples == 3  # 200, 250 and 400: an iteration of another case has 50


def test_what_lies_in_a_fetch_is_data() -> None:
    iterations = [iteration(100, 200, ("data", 110, 150), ("forward", 150, 180))]
    facts = samples(101, 111, 130, 149, 150, 181).facts(iterations, iterations, {"other": 0.0, "data": 0.0})
    assert facts is not None
    assert (facts.num_samples, facts.num_data_samples) == (2, 3)  # 101 and 181; 111, 130 and 149
    assert [frame.num_samples for frame in facts.data_frames] == [2, 1]
    assert not facts.num_outside_samples


def test_forward_and_loss_have_lines_of_their_own() -> None:
    iterations = [iteration(100, 200, ("forward", 110, 150), ("loss", 150, 180))]
    facts = samples(111, 130, 150, 151, 153, 181).facts(iterations, iterations, {"forward": 0.0, "loss": 0.0})
    assert facts is not None
    assert (facts.num_forward_samples, facts.num_loss_samples) == (2, 3)
    assert [frame.place for frame in facts.loss_frames] == ["a.py:2", "a.py:1"]


def test_places_beyond_the_most_frequent_are_counted_only() -> None:
    facts = Samples([{"places": [[f"a.py:{number}", "f", None] for number in range(30)],
                      "samples": [[time_ns, time_ns % 30] for time_ns in range(900)]}]).facts(
        [iteration(0, 900)], [], {"other": 1.0})
    assert facts is not None
    assert (facts.num_samples, len(facts.frames)) == (900, NUM_KEPT)


def test_the_delay_of_samples_is_that_of_the_median_note() -> None:
    found = Samples({"places": [["a.py:1", "f", None]], "samples": [[1, 0]], "delay_s": delay_s}
                    for delay_s in (1e-5, 2e-4, 3e-5))
    facts = found.facts([iteration(0, 9)], [], {"other": 1.0})
    assert facts is not None
    assert facts.delay_s == 3e-5


def test_places_of_several_notes_are_numbered_through() -> None:
    assert Samples().facts([iteration(0, 9)], [], {"other": 1.0}) is None
    facts = Samples([{"places": [["a.py:1", "f", None]], "samples": [[1, 0]]},
                     {"places": [["b.py:1", "g", None]], "samples": [[2, 1], [3, 1]]}]).facts(
        [iteration(0, 9)], [], {"other": 1.0})
    assert facts is not None
    assert [frame.function for frame in facts.frames] == ["g", "f"]


@pytest.mark.parametrize(("libraries", "num_own"), [
    ([None] * 6 + ["torch.optim.adam.Adam.step"] * 3, 9), (["torch.optim.adam.Adam.step"] * 9, None),
    ([None] * 4 + ["torch.optim.adam.Adam.step"] * 9, None)])
def test_an_update_has_lines_if_the_program_s_own_code_runs_in_it(libraries: list[str | None], num_own: int | None
                                                                  ) -> None:
    found = Samples([{"places": [[f"a.py:{number}", "f", library] for number, library in enumerate(libraries)],
                      "samples": [[number, number] for number in range(len(libraries))]}])
    facts = found.facts([iteration(0, 50, ("update", 0, 40))], [iteration(0, 50)], {"update": 0.8, "other": 0.0})
    assert facts is not None
    assert facts.num_update_samples == (num_own or 0)
    assert bool(facts.update_frames) is (num_own is not None)


@pytest.mark.parametrize(("num_samples", "other_frac", "is_shown"), [
    (5, 0.11, True), (5, 0.09, False), (4, 0.5, False)])
def test_samples_that_nobody_asked_for_are_shown_where_other_is_large(
        num_samples: int, other_frac: float, is_shown: bool) -> None:
    found = Samples([{"places": [["a.py:1", "f", None]], "samples": [[time_ns, 0] for time_ns in range(num_samples)],
                      "interval_s": SPARSE_INTERVAL_S}])
    facts = found.facts([iteration(0, 9)], [], {"other": other_frac, "data": 0.9})
    assert facts is not None
    assert (facts.interval_s, facts.num_data_samples) == (SPARSE_INTERVAL_S, 0)
    assert bool(facts.frames) == is_shown
    assert facts.num_samples == (num_samples if other_frac > 0.1 else 0)
