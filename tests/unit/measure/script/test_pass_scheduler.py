"""The passes that follow the timing of a watched program: their order, which iterations serve them, what goes wrong."""

import gc
import os
import threading
import time
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sources import Made
from torch import nn

from charact.core.timeline import Iteration
from charact.measure.script import pass_instruments, pass_scheduler
from charact.measure.script.pass_instruments import INSTRUMENTS, quiet_profiler
from charact.measure.script.pass_scheduler import MAX_DISCARDED, PassScheduler
from charact.measure.script.program_state import PhaseMarks, ProgramState
from charact.measure.script.spans.event_log_reader import EventLog
from charact.measure.script.spans.event_log_to_record import add_passes
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.record.in_progress import TRACES
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import (
    CountersPass,
    FlopPass,
    MemoryPass,
    OperatorsPass,
    Pass,
    Passes,
    TimingPass,
)

pytestmark = pytest.mark.clock


class Fake:
    """An instrument that keeps what is asked of it, and breaks where it is told to."""

    num_iterations = 2
    calls: list[str] = []  # noqa: RUF012  (one list for all)
    breaks_in = ""

    def __init__(self, *_: Any) -> None:
        self.number = 0

    def __getattr__(self, name: str) -> Any:
        def call(last: bool | None = None) -> Any:
            Fake.calls.append(name if last is None else f"{name} {'last' if last else 'one'}")
            if name == Fake.breaks_in:
                raise ValueError("out of\norder")
            return ({"counters": [{"value": 1}]}, {"num_iterations": 2}) if name == "results" else None

        return call


def compute(time_s: float) -> None:
    """Use the processor for so long."""
    end_s = time.thread_time() + time_s
    while time.thread_time() < end_s:
        pass


class Program:
    """A program's iterations, given to a scheduler."""

    def __init__(self, *passes: str, budget_frac: float | None = None) -> None:
        self.notes: list[dict[str, Any]] = []
        self.recorder = SpanRecorder()
        self.recorder.on = True
        self.scheduler = PassScheduler(passes, Path(), self.recorder, {}, dict, self.notes.append, budget_frac)

    def iterate(self) -> bool:
        return self.scheduler.advance(iteration_ended=True)

    def forward(self, *, grad: bool, training: bool, owner: int = 1) -> bool:
        self.recorder.enter(Kind.FORWARD, owner, grad=grad, training=training)
        self.recorder.leave()
        return self.scheduler.advance(iteration_ended=False)

    @property
    def endings(self) -> list[tuple[str, str, str | None]]:
        return [(note["pass"], note["status"], note["reason"]) for note in self.notes if note["note"] == "pass"]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    Fake.calls, Fake.breaks_in = [], ""
    monkeypatch.setitem(INSTRUMENTS, "first", Fake)
    monkeypatch.setitem(INSTRUMENTS, "second", Fake)


class TestTheOrder:
    def test_each_pass_has_an_iteration_to_warm_up_and_then_its_own(self) -> None:
        program = Program("first", "second")
        assert [program.iterate() for _ in range(7)] == [True] * 6 + [False]
        assert Fake.calls == 2 * ["prepare", "begin", "end one", "begin", "end last", "results", "clean"]
        assert program.endings == [("first", "ok", None), ("second", "ok", None)]
        assert program.notes[0]["note"] == "timing ended"
        times = [program.notes[0]["time_ns"], *(edge for note in program.notes[1:] for window in note["windows"]
                                                for edge in window)]
        assert times == sorted(times)
        assert [len(note["windows"]) for note in program.notes[1:]] == [2, 2]
        assert program.notes[1]["tables"] == {"counters": [{"value": 1}]}

    def test_without_passes_nothing_is_asked_for_nor_noted(self) -> None:
        program = Program()
        assert not program.iterate()
        program.scheduler.stop()
        assert program.notes == []

    @pytest.mark.parametrize("place", ["prepare", "begin", "end", "results", "clean"])
    def test_a_pass_that_breaks_leaves_its_reason_and_the_next_goes_on(self, place: str) -> None:
        program = Program("first", "second")
        Fake.breaks_in = place
        while not program.endings:
            assert program.iterate()
        assert program.endings == [("first", "failed", "ValueError: out of")]
        assert Fake.calls[-1] == "clean"
        Fake.breaks_in = ""
        while program.iterate():
            pass
        assert program.endings[1:] == [("second", "ok", None)]

    def test_a_program_that_ends_before_leaves_the_reason(self) -> None:
        program = Program("first", "second")
        assert [program.iterate(), program.iterate()] == [True, True]
        program.scheduler.stop()
        assert program.endings == [
            ("first", "failed", "the program ended before it had run enough iterations for this pass"),
            ("second", "skipped",
             "the program ended before this pass could begin: all passes need 22 iterations, or 10 after those of "
             "--iterations")]
        assert Fake.calls == ["prepare", "begin", "drop", "clean"]
        program.scheduler.stop()
        assert len(program.endings) == 2

    @pytest.mark.parametrize(("budget_frac", "statuses"), [
        (None, ["ok", "ok"]), (0.2, ["ok", "skipped"]), (1e9, ["ok", "ok"])])
    def test_a_pass_is_skipped_if_others_took_the_time(self, budget_frac: float | None, statuses: list[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pass_scheduler, "LEAST_BUDGET_S", 0.02)
        monkeypatch.setattr(Fake, "clean", lambda _: compute(0.05), raising=False)
        program = Program("first", "second", budget_frac=budget_frac)
        while program.iterate():
            pass
        assert [status for _, status, _ in program.endings] == statuses
        if "skipped" in statuses:
            assert program.endings[1][2] == ("charact's other passes took 0.1 s of processor time, and 0.0 s "
                                             "were allowed: give a larger --budget")

    def test_the_program_s_own_time_is_not_that_of_the_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pass_scheduler, "LEAST_BUDGET_S", 0.05)
        program = Program("first", "second", budget_frac=0.0)
        while program.iterate():
            compute(0.03)
        assert [status for _, status, _ in program.endings] == ["ok", "ok"]

    def test_iterations_that_vary_are_no_sign_of_many_operators(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Fake, "may_end_early", True, raising=False)
        program = Program("first", budget_frac=0.0)
        for time_s in (0.01, 0.06, 0.01, 0.04, 0.01):  # one is an exception, such as an evaluation
            program.scheduler.are_due(iteration_ended=True)
            compute(time_s)
        program.scheduler.are_due(iteration_ended=True)
        program.iterate()
        while program.iterate():
            compute(0.03)
        assert program.endings == [("first", "ok", None)]

    @pytest.mark.parametrize(("budget_s", "status", "most_windows"), [
        (1000.0, "ok", 9), (2.0, "ok", 1), (0.5, "failed", 0)])
    def test_a_pass_whose_profile_takes_long_to_read_measures_fewer_iterations_or_none(
            self, budget_s: float, status: str, most_windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pass_scheduler, "LEAST_BUDGET_S", budget_s)
        monkeypatch.setattr(Fake, "num_iterations", 9)
        program = Program("first", budget_frac=0.0)
        program.iterate()
        while program.iterate():  # the warm-up takes no time, each measured iteration 0.04 s, and reading it 1.2 s
            compute(0.04)
        (ended,) = (note for note in program.notes if note["note"] == "pass")
        assert (ended["status"], len(ended["windows"])) == (status, most_windows)
        assert status == "ok" or "give a larger --budget" in ended["reason"]

    def test_an_instrument_that_needs_no_warm_up_measures_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Fake, "warms_up", False, raising=False)
        program = Program("first")
        assert [program.iterate() for _ in range(3)] == [True, True, False]

    def test_a_validation_in_between_sends_a_pass_to_another_iteration(self) -> None:
        program = Program("first")
        program.iterate()
        program.forward(grad=True, training=True)
        program.iterate()
        for number in range(2 + MAX_DISCARDED):
            program.forward(grad=False, training=True, owner=2)  # a teacher
            program.forward(grad=False, training=False)
            program.forward(grad=False, training=False)  # there is no more to drop
            assert Fake.calls.count("drop") == min(number + 1, MAX_DISCARDED)
            assert program.iterate() is (number < 1 + MAX_DISCARDED)
        assert program.endings == [("first", "ok", None)]

    @pytest.mark.parametrize("breaks_in", ["", "begin"])
    @pytest.mark.parametrize(("at_end", "expected"), [(900, 300), (1000, 1000)])
    def test_the_program_s_peak_is_without_that_of_the_passes(
            self, monkeypatch: pytest.MonkeyPatch, at_end: int, expected: int, breaks_in: str) -> None:
        peak = 300
        monkeypatch.setattr("charact.measure.script.pass_scheduler.resident_peak_bytes", lambda: peak)
        program = Program("first")
        monkeypatch.setattr(Fake, "breaks_in", breaks_in)
        assert program.scheduler.program_peak_bytes() == 300
        program.iterate()
        peak = 900
        while program.iterate():
            pass
        peak = at_end
        assert program.scheduler.program_peak_bytes() == expected

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_records_nothing(self, tmp_path: Path) -> None:
        notes: list[dict[str, Any]] = []
        scheduler = PassScheduler(["operators"], tmp_path, SpanRecorder(), {}, dict, notes.append)
        for _ in range(2):
            scheduler.advance(iteration_ended=True)
        assert torch.autograd._profiler_enabled()
        child = os.fork()
        if child == 0:
            scheduler.stop_in_child()
            os._exit(torch.autograd._profiler_enabled() or scheduler.advance(iteration_ended=True))
        assert os.waitpid(child, 0)[1] == 0
        scheduler.stop()
        assert not torch.autograd._profiler_enabled()
        assert notes[-1]["status"] == "failed"


ITERATIONS = [Iteration(start, start + 10, []) for start in range(0, 80, 10)]


@pytest.mark.parametrize(("notes", "num_timed"), [
    ({}, 8), ({"ended": 38}, 3), ({"ended": 40}, 4), ({"ended": 40, "resumed": 60}, 6),
    ({"ended": 40, "resumed": 61}, 5), ({"ended": 40, "resumed": 61, "evaluation": (9, 20)}, 3),
    ({"ended": 40, "evaluation": (10, 20)}, 3), ({"evaluation": (10, 20)}, 8)])
def test_iterations_that_reach_into_a_pass_are_not_timed(notes: dict[str, Any], num_timed: int) -> None:
    log = EventLog([], [{"note": "evaluation measured", "span_ns": value} if name == "evaluation" else
                        {"note": f"timing {name}", "time_ns": value} for name, value in notes.items()])
    assert len(log.timed(ITERATIONS)) == num_timed


def test_a_pass_has_the_iterations_that_began_in_it() -> None:
    log = EventLog([], [
        {"note": "timing ended", "time_ns": 38},
        {"note": "pass", "pass": "operators", "status": "ok", "reason": None, "windows": [[48, 58], [59, 68]],
         "facts": {"iteration_s": 3.0, "flop": {"uncounted": []}}, "tables": {"operators": [{"phase": "forward"}]}},
        {"note": "pass", "pass": "memory", "status": "failed", "reason": "why", "windows": []}])
    entry = CaseEntry("a", "ok", device="cpu", passes=Passes(timing=TimingPass(median_s=2.0)))
    tables: dict[str, Any] = {"iterations": []}
    add_passes(log, entry, tables, ["operators", "memory", "counters"], ITERATIONS)
    assert entry.passes == {
        "timing": TimingPass(median_s=2.0),
        "operators": OperatorsPass("ok", iterations=[5, 6], iteration_s=3.0, overhead_ratio=1.5),
        "memory": MemoryPass("failed", "why"),
        "counters": CountersPass("failed", "the program was killed before this pass had ended"),
        "flop": FlopPass("ok"), "kernels": Pass("skipped", "kernels run on GPUs only")}
    assert tables == {"iterations": [], "operators": [{"phase": "forward"}]}
    assert log.pass_spans_ns == [(38, 68)]


BUSY = {"source": "kineto", "counter": "busy_s", "value": 1.0}


@pytest.mark.parametrize(("device", "asked_for", "rows", "operators", "expected"), [
    ("cuda:0", ["operators", "counters"], [BUSY], None, ("ok", None)),
    ("cpu", ["operators", "counters"], [], None, ("n/a", "kernels run on GPUs only")),
    ("cpu", ["counters"], [], None, ("n/a", "kernels run on GPUs only")),
    ("cuda:0", ["operators", "counters"], [], "why", ("n/a", "why")),
    ("cuda:0", ["operators", "counters"], [], None, ("n/a", "the trace has no kernels")),
    ("cuda:0", ["counters"], [], None, ("n/a", "read from the operator pass's trace")),
])
def test_counters_of_the_trace_are_next_to_those_that_were_sampled(
        device: str, asked_for: list[str], rows: list[dict[str, Any]], operators: str | None,
        expected: tuple[str, str | None]) -> None:
    log = EventLog([], [
        {"note": "pass", "pass": "operators", "status": "failed" if operators else "ok", "reason": operators,
         "windows": [], "facts": {"iteration_s": 1.0}, "tables": {"counters": rows}},
        {"note": "pass", "pass": "counters", "status": "ok", "reason": None, "windows": [],
         "facts": {"sources": {"host": {"status": "ok"}}}, "tables": {"counters": [{"source": "host"}]}}])
    entry = CaseEntry("a", "ok", device=device, passes=Passes(timing=TimingPass(median_s=2.0)))
    tables: dict[str, Any] = {}
    add_passes(log, entry, tables, asked_for, [])
    assert set(entry.passes.counters.sources) == {"host", "kineto"}
    outcome = entry.passes.counters.sources["kineto"]
    assert (outcome.status, outcome.reason) == expected
    assert tables["counters"] == [*rows, {"source": "host"}]


class TestWhatWasSeen:
    def test_a_single_model_lends_its_layers_their_names_and_parts_of_it_are_none(self) -> None:
        model, criterion = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters())
        seen = ProgramState({1: model, 2: model[1], 3: criterion, 4: optimizer}, dict)
        assert seen.models() == {"": model}
        assert seen.optimizers() == [optimizer]

    def test_several_are_told_apart_by_their_names(self) -> None:
        models = {number: nn.Linear(1, 1) for number in range(3)}
        assert ProgramState(models, lambda: {0: "netG", 1: "netD"}).models() == {
            "netG.": models[0], "netD.": models[1], "Linear.": models[2]}
        assert ProgramState(models, dict).models() == {
            "Linear.": models[0], "Linear#1.": models[1], "Linear#2.": models[2]}

    def test_marks_follow_the_span_that_was_opened_last(self) -> None:
        recorder, ended = SpanRecorder(), [0]
        recorder.on = True
        marks = PhaseMarks(recorder, lambda: ended.append(ended.pop() + 1))
        with quiet_profiler(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            marks.start()
            recorder.enter(Kind.FORWARD)
            recorder.enter(Kind.LOSS)
            recorder.leave()
            recorder.leave()
            recorder.enter(Kind.BACKWARD)
            marks.stop()
            recorder.leave()
        names = [event.name for event in profiler.events() if event.name.startswith("charact.phase:")]
        assert sorted(names) == ["charact.phase:backward", "charact.phase:forward", "charact.phase:forward",
                                 "charact.phase:loss"]
        assert ended == [4]

    def test_an_error_amid_the_programs_calls_waits_for_the_end(self) -> None:
        recorder = SpanRecorder()
        recorder.on = True

        def fail() -> None:
            raise ValueError("broken")

        marks = PhaseMarks(recorder, fail)
        marks.start()
        for _ in range(2):
            recorder.enter(Kind.FORWARD)
            recorder.leave()
        marks.stop()
        with pytest.raises(ValueError, match="broken"):
            marks.check()


class TestCountersOfAWatchedProgram:
    """Sources that are made for it, over three iterations of a forward each."""

    @pytest.fixture
    def source(self, monkeypatch: pytest.MonkeyPatch) -> Made:
        source = Made()
        monkeypatch.setattr(pass_instruments, "chosen_sources", lambda _: [source])
        return source

    def test_samples_have_the_phases_of_their_spans(self, source: Made, tmp_path: Path) -> None:
        recorder = SpanRecorder()
        recorder.on = True
        instrument = INSTRUMENTS["counters"](ProgramState({}, dict), recorder, tmp_path)
        instrument.prepare()
        for number in range(3):
            instrument.begin()
            recorder.enter(Kind.FORWARD)
            time.sleep(0.03)
            recorder.leave()
            time.sleep(0.03)
            instrument.end(last=number == 2)
        tables, facts = instrument.results()
        instrument.clean()
        samples = [row for row in tables["counters"] if row["time_s"] is not None]
        assert {row["phase"] for row in samples} == {"forward", None}
        assert [phase for _, _, phase in facts["spans"]] == ["forward"] * 3
        assert all(end_s - start_s >= 0.03 for start_s, end_s, _ in facts["spans"])
        assert facts["duration_s"] >= 0.18
        assert facts["sources"]["made"]["status"] == "ok"
        for row in samples:
            inside = [phase for start_s, end_s, phase in facts["spans"] if start_s <= row["time_s"] < end_s]
            assert inside == ([row["phase"]] if row["phase"] else [])

    def test_a_pass_that_ends_too_early_reads_no_more(self, source: Made, tmp_path: Path) -> None:
        notes: list[dict[str, Any]] = []
        scheduler = PassScheduler(["counters"], tmp_path, SpanRecorder(), {}, dict, notes.append)
        for _ in range(3):
            scheduler.advance(iteration_ended=True)
        assert source.num_open == 1
        scheduler.stop()
        assert source.num_open == 0
        assert notes[-1]["reason"].startswith("the program ended before")
        assert not [thread for thread in threading.enumerate() if thread.name == "charact-sampler"]


@pytest.mark.parametrize("kind", ["operators", "memory"])
def test_a_program_that_profiles_itself_keeps_its_profiler(kind: str, tmp_path: Path) -> None:
    gc.collect()
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    notes: list[dict[str, Any]] = []
    scheduler = PassScheduler([kind], tmp_path, SpanRecorder(), {},
                              dict, notes.append)
    assert not scheduler.advance(iteration_ended=True)
    assert notes[-1]["reason"] == "the program uses PyTorch's profiler itself, and a process can have only one"
    with quiet_profiler(), own:
        torch.ones(3).sum()
    assert any(event.name == "aten::sum" for event in own.events())


@pytest.mark.parametrize("compiles", [False, True])
def test_layers_are_marked_meanwhile_unless_a_hook_would_break_a_graph(compiles: bool, tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_instruments, "compiles", lambda: compiles)
    model = nn.Sequential(nn.Linear(4, 4))
    instrument = INSTRUMENTS["operators"](ProgramState({1: model}, dict), SpanRecorder(),
                                           tmp_path / TRACES["train"])
    instrument.prepare()
    assert bool(model[0]._forward_pre_hooks) is not compiles
    instrument.clean()
    assert not model[0]._forward_pre_hooks
    assert not model[0]._forward_hooks
    assert (tmp_path / TRACES["train"]).parent.is_dir()


@pytest.mark.parametrize(("times_s", "in_step", "num_iterations"), [
    ([0.010], False, 13),
    ([0.010, 0.030], False, 13),
    ([0.100, 0.300], False, 9),  # long iterations: there may be few
    ([0.010, 0.010, 0.010, 4.0], False, 4),
    ([4.0], True, 13),  # ranks decide alike
])
def test_passes_begin_after_many_or_long_iterations(monkeypatch: pytest.MonkeyPatch, times_s: list[float],
                                                    in_step: bool, num_iterations: int) -> None:
    times_ns = accumulate(round(1e9 * time_s) for time_s in cycle(times_s))
    monkeypatch.setattr(pass_scheduler, "perf_counter_ns", lambda: next(times_ns))
    scheduler = PassScheduler([], Path(), SpanRecorder(), {}, dict, lambda _: None, in_step=in_step)
    assert not scheduler.are_due(iteration_ended=False)
    assert [scheduler.are_due(iteration_ended=True) for _ in range(num_iterations)] == [
        *[False] * (num_iterations - 1), True]
    assert scheduler.are_due(iteration_ended=False)
