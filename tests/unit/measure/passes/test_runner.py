"""Running cases: failures stay where they happen, and a signal keeps what has finished."""

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.notes import Notes
from support.recording import recorded
from support.small import TwoLayers, small_case
from support.sources import Made, break_down

from charact import load_run
from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.execution.out_of_memory import is_out_of_memory, reason_line, requested_bytes
from charact.measure.counters import chosen_sources
from charact.measure.passes import runner
from charact.measure.passes.operators import OperatorPass
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule, Timing, timing_pass
from charact.record.manifest_passes import CoreUse, CountersPass
from charact.record.reader import Run
from charact.record.schema import TABLES
from charact.record.writer import RunWriter
from charact.workload.registry import find_workload

pytestmark = pytest.mark.usefixtures("short_counter_pass")
CPU = torch.device("cpu")
RULE = StopRule(max_iterations=6, max_seconds=1.0)


def run(tmp_path: Path, cases: list[Any], notes: Notes | None = None, sources: Sequence[Any] = ()) -> Run:
    return recorded(tmp_path, lambda writer, interrupt: run_cases(
        cases, RULE, writer, notes or Notes(), interrupt, sources))


def test_every_pass_leaves_its_table(tmp_path: Path) -> None:
    notes = Notes()
    record = run(tmp_path, [small_case("train"), small_case("infer")], notes, chosen_sources(None))
    assert list(record.cases["status"]) == ["ok", "ok"]
    for table in TABLES:
        cases = set(record.table(table)["case"])
        empty = table in ("kernels", "stages", "metrics", "fits", "problems", "repetitions", "bricks", "brick_times",
                          "pieces", "constructions", "collectives", "program_iterations", "serving_steps",
                          "serving_kernels", "windows")
        assert cases == (set() if empty else set(record.cases["case"])), table
    train = record.passes(record.cases["case"][0])
    assert {name: facts["status"] for name, facts in train.items()} == {
        "timing": "ok", "operators": "ok", "kernels": "skipped", "memory": "ok", "flop": "ok", "counters": "ok"}
    assert train["operators"]["overhead_ratio"] > 0
    assert record.cases["num_parameters"][0] == 512 * 256 + 256 * 10
    assert [told for told in notes.told if told[0] == "pass"][:5] == [
        ("pass", name) for name in ("timing", "operators", "memory", "flop", "counters")]
    assert len(list((record.path / "trace").glob("*.pt.trace.json.gz"))) == 2


@pytest.mark.parametrize(("lost", "is_kept", "num_timed"), [
    ([0.5, 0.1], 1, 2), ([0.3, 0.6], 0, 2), ([0.2], 0, 1), ([None], 0, 1)])
def test_a_first_case_that_other_programs_disturbed_is_timed_again_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[float | None], is_kept: int, num_timed: int
) -> None:
    """`lost` is the share of the processor time that other programs took in each timing; the quieter one is kept."""
    timings: list[Timing] = []

    def timed(loop: Any, rule: StopRule, on_iteration: Any) -> Timing:
        timing = timing_pass(loop, rule, on_iteration)
        frac = lost[len(timings)] if len(timings) < len(lost) else 0.9
        timing.facts.core_use = None if frac is None else CoreUse(1.0, 2, 1.0, 9.0, waiting_s=frac / (1 - frac))
        timings.append(timing)
        return timing

    monkeypatch.setattr(runner, "timing_pass", timed)
    record = run(tmp_path, [small_case("train"), small_case("infer")])
    assert len(timings) == num_timed + 1  # the second case is timed once
    walls = record.iterations.query(f"case == '{record.cases['case'][0]}'").groupby("iteration")["host_s"].sum()
    assert walls.tolist() == pytest.approx(timings[is_kept].wall_s)


class TestCounters:
    @pytest.mark.slow
    def test_samples_whole_values_and_spans_are_recorded(self, tmp_path: Path) -> None:
        record = run(tmp_path, [small_case()], sources=chosen_sources(None))
        passes = record.passes(record.cases["case"][0])
        counters = record.counters.query("source == 'host'")
        whole = counters[counters["time_s"].isna()].set_index("counter")["value"]
        assert whole["rss_bytes"] > 1e7
        samples = counters[counters["counter"].eq("rss_bytes") & counters["time_s"].notna()]
        facts = passes["counters"]
        assert max(1, facts["duration_s"] / 0.1 - 2) <= len(samples) <= facts["duration_s"] / 0.1 + 1
        assert samples["time_s"].between(0.1, facts["duration_s"] + 0.1).all()
        assert {phase for _, _, phase in facts["spans"]} == {"data", "forward", "loss", "backward", "update"}
        assert facts["sources"]["host"]["status"] == "ok"

    @pytest.mark.slow
    def test_kernels_counters_are_not_on_a_cpu(self, tmp_path: Path) -> None:
        record = run(tmp_path, [small_case()], sources=chosen_sources(["kineto"]))
        ended = record.passes(record.cases["case"][0])["counters"]["sources"]
        assert list(ended) == ["kineto"]
        outcome = {"status": "n/a", "reason": "kernels run on GPUs only", "remedy": None, "missing": {}}
        assert ended["kineto"].items() >= outcome.items()
        assert record.counters.empty

    @pytest.mark.slow_variants
    @pytest.mark.parametrize(("names", "kept"), [(None, True), (["host"], False)])
    def test_the_operator_passs_trace_gives_them_where_they_are_asked_for(
            self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None, kept: bool) -> None:
        row = {"phase": None, "time_s": None, "rank": 0, "device": "cuda:0", "source": "kineto", "kernel": None,
               "counter": "busy_s", "value": 2.0}
        found = OperatorPass([], [], [row], {"iteration_s": 1.0})
        monkeypatch.setattr(runner, "operator_pass", lambda *_: found)
        record = run(tmp_path, [small_case()], sources=chosen_sources(names))
        ended = record.passes(record.cases["case"][0])["counters"]["sources"]
        assert ("kineto" in ended) == ("kineto" in set(record.counters["source"])) == kept
        assert ended["host"]["status"] == "ok"
        if kept:
            assert (ended["kineto"]["status"], len(record.counters.query("source == 'kineto'"))) == ("ok", 1)

    def test_none_is_asked_for(self, tmp_path: Path) -> None:
        notes = Notes()
        record = run(tmp_path, [small_case()], notes)
        assert record.entries[0].passes.counters == CountersPass("skipped", "not asked for: --counters auto")
        assert record.counters.empty
        assert ("pass", "counters") not in notes.told

    @pytest.mark.slow
    def test_a_source_that_breaks_leaves_the_pass_and_the_case_alone(self, tmp_path: Path) -> None:
        record = run(tmp_path, [small_case()], sources=[Made(opening=break_down), *chosen_sources(["host"])])
        (case,) = record.manifest["cases"]
        counters = case["passes"]["counters"]
        assert (case["status"], counters["status"]) == ("ok", "ok")
        assert counters["sources"]["made"]["status"] == "failed"
        assert counters["sources"]["made"]["reason"] == "ValueError: no such"
        assert set(record.counters["source"]) == {"host"}


@pytest.mark.parametrize(("fail_in", "status", "reason"), [
    ("forward", "error", "ValueError: the model"), ("memory", "oom", "out of memory: ")])
def test_a_case_that_fails_is_recorded_and_the_sweep_goes_on(
    tmp_path: Path, fail_in: str, status: str, reason: str,
) -> None:
    record = run(tmp_path, [small_case(workload=TwoLayers(fail_in=fail_in)), small_case("infer")])
    failed, ok = record.manifest["cases"]
    assert failed["status"] == status
    assert failed["reason"].startswith(reason)
    assert "\n" not in failed["reason"]
    assert ok["status"] == "ok"
    assert {facts["status"] for facts in failed["passes"].values()} == {"skipped"}
    assert failed["requested_bytes"] == (2**57 if status == "oom" else None)
    assert set(record.iterations["case"]) == {ok["case"]}


def test_a_pass_that_fails_leaves_its_reason_and_the_case_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no profiler\nhere")

    monkeypatch.setattr(runner, "operator_pass", broken)
    record = run(tmp_path, [small_case()])
    (case,) = record.manifest["cases"]
    assert case["status"] == "ok"
    assert case["passes"]["operators"] == {"status": "failed", "reason": "RuntimeError: no profiler"}
    assert record.operators.empty
    assert not record.memory.empty


@pytest.mark.slow_variants
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_case_and_keeps_the_finished_ones(tmp_path: Path, number: signal.Signals) -> None:
    def at_case(case_number: int) -> None:
        if case_number == 2:
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()

    cases = [small_case(), small_case("infer", batch_size=7), small_case("infer")]
    rule = StopRule(max_iterations=10**9, max_seconds=0.5, precision_target_frac=0.0)
    writer = RunWriter(tmp_path, "test", {"machine": {}, "software": {}, "options": {}})
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        run_cases(cases, rule, writer, Notes(at_case), interrupt)
    assert interrupt.signal == number
    assert signal.getsignal(number) is before
    writer.close("interrupted")
    record = load_run(writer.publish())
    assert list(record.cases["status"]) == ["ok", "interrupted"]
    assert set(record.iterations["case"]) == {cases[0].id}


def test_a_signal_waits_while_it_is_not_allowed() -> None:
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.signal == signal.SIGINT

        def measure() -> None:
            with interrupt.allowed():
                pytest.fail("measured though a signal had come")

        with pytest.raises(KeyboardInterrupt):
            measure()


@pytest.mark.parametrize(("message", "size"), [
    ("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
     "52613349376 bytes. Error code 12 (Cannot allocate memory)", 52613349376),
    ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB", 2 * 2**30),
    ("CUDA out of memory. Tried to allocate 20.50 MiB.", round(20.5 * 2**20)),
    ("std::bad_alloc", None),
    ("Unable to allocate 40.2 GiB for an array with shape (3, 60000, 60000)", round(40.2 * 2**30)),
    ("Caught MemoryError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
     "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.50 GiB for an array", round(1.5 * 2**30)),
    ("CUDA error: out of memory", None),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", None),
])
def test_running_out_of_memory_is_known_with_its_size(message: str, size: int | None) -> None:
    error = torch.OutOfMemoryError(message) if message.startswith("CUDA") else RuntimeError(message)
    assert is_out_of_memory(error)
    assert requested_bytes(error) == size


def test_the_line_that_tells_the_size_is_the_reason() -> None:
    error = RuntimeError("Caught MemoryError in DataLoader worker process 0.\nTrace\n  Unable to allocate 1 GiB now")
    assert reason_line(error) == "Unable to allocate 1 GiB now"
    assert reason_line(RuntimeError("std::bad_alloc")) == "std::bad_alloc"
    assert reason_line(MemoryError()) == "MemoryError"
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_a_second_signal_does_not_interrupt_again() -> None:
    with Interrupt() as interrupt:
        def measure() -> None:
            with interrupt.allowed():
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                finally:
                    os.kill(os.getpid(), signal.SIGTERM)  # would break the clean-up of what the first one ended

        with pytest.raises(KeyboardInterrupt):
            measure()
        assert interrupt.signal == signal.SIGINT


@pytest.mark.parametrize(("case", "message"), [
    (Case(find_workload("vgg16").prepare(), 7, 1, "train", "fp32", CPU, DataRequest()),
     r"^input size 7 is too small for vgg16 \(needs at least \d+\)$"),
    (small_case(batch_size=257), "batch size 257 is larger than the 256 samples"),
    (small_case(precision="fp16"), r"fp16 is not measured on a CPU: .*bf16"),
    (Case(find_workload("resnet18").prepare(), 32, 1, "train", "fp32", CPU, DataRequest("mnits")),
     r"^unknown dataset 'mnits': did you mean mnist"),
], ids=["input size", "batch size", "precision", "data"])
def test_cases_that_cannot_run(case: Case, message: str) -> None:
    with pytest.raises(UserError, match=message):
        case.check()


@pytest.mark.parametrize(("variant", "device", "case_id"), [
    (None, "cpu", "resnet50-224-b8-train-fp32-cpu"), ("cifar", "cuda:1", "resnet50.cifar-224-b8-train-fp32-cuda1")])
def test_ids_are_readable_and_stable(variant: str | None, device: str, case_id: str) -> None:
    workload = find_workload("resnet").prepare(variant)
    assert Case(workload, 224, 8, "train", "fp32", torch.device(device), DataRequest()).id == case_id
