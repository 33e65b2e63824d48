"""Inference: what a load and a prediction are made of, that they add up, and that the answers are right."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.notes import Notes
from support.recording import recorded
from support.sleeper import Sleeper, slept
from support.small import TwoLayers, small_case
from torch import nn

from charact.core.errors import UserError
from charact.core.timeline import iteration_rows
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.execution.loop import Loop
from charact.measure.training import infer_case
from charact.measure.training.infer_case import InferencePlan, InferenceTimes, infer_cases, load, run_inference
from charact.measure.training.weight_files import cached_frac, check_weights, drop_cached, save_weights
from charact.record.manifest_passes import InferencePass
from charact.record.reader import Run
from charact.record.schema import LOAD_PHASES
from charact.record.writer import RunWriter
from charact.workload.metrics import Accuracy, Metric

pytestmark = pytest.mark.clock

METRIC_S = 0.015


class SlowMetric(Metric):
    """Sleeps in each update, and adds up for how long."""

    name, larger_is_better = "slow", True

    def __init__(self) -> None:
        self.slept_s = 0.0

    def update(self, outputs: Any, batch: Any) -> None:
        begun = time.perf_counter()
        time.sleep(METRIC_S)
        self.slept_s += time.perf_counter() - begun

    def value(self) -> float:
        return 0.5


class Absent(Metric):
    """Cannot be told here."""

    name, larger_is_better = "absent", True

    def unavailable(self) -> str:
        return "install what it needs"

    def update(self, outputs: Any, batch: Any) -> None:
        raise AssertionError("a metric that is not available is told nothing")

    def value(self) -> float | None:
        return None


@dataclass(kw_only=True)
class SlowToBuild(Sleeper):
    """Its model takes a known time to make."""

    def model(self, dataset: Any) -> nn.Module:
        time.sleep(0.03)
        return super().model(dataset)

    def metrics(self, dataset: Any) -> list[Metric]:
        return [SlowMetric()]


@dataclass(kw_only=True)
class Judged(TwoLayers):
    """Its answers are counted."""

    def metrics(self, dataset: Any) -> list[Metric]:
        return [Accuracy(), Absent()]


def run(tmp_path: Path, cases: list[Case], plan: InferencePlan, notes: Notes | None = None) -> Run:
    return recorded(tmp_path, lambda writer, interrupt: infer_cases(cases, plan, writer, notes or Notes(), interrupt))


def saved(workload: TwoLayers, path: Path, seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    model = workload.model(small_case(workload=workload).dataset())
    save_weights(model, path)
    return model


def predicted(case: Case, num_batches: int) -> tuple[InferenceTimes, float, float]:
    """A prediction with a slow metric, the wall time around it, and how much of that the metric slept."""
    loop = Loop(case, iter(()))
    batches = Batches(case, loop.dataset, shuffle=False, whole=False)
    metric = SlowMetric()
    begun = time.perf_counter()
    prediction = run_inference(loop, batches, num_batches, [metric], lambda *_: None)
    return prediction, time.perf_counter() - begun, metric.slept_s


class TestTimes:
    def test_the_phases_of_a_prediction_hold_the_known_sleeps_and_sum_to_its_wall_time(self) -> None:
        with slept() as sleeps:
            prediction, around_s, metric_s = predicted(small_case("infer", batch_size=1, workload=Sleeper()), 4)
        rows = {row["phase"]: row for row in prediction.stage_rows(4)}
        assert set(rows) == {"data", "forward", "other"}
        total_s = sum(row["host_s"] for row in rows.values())
        assert total_s == pytest.approx(prediction.clock.wall_s)
        slept_s = {"data": sum(sleeps["data"]), "forward": sum(sleeps["forward"]), "other": metric_s}
        assert sum(slept_s.values()) <= total_s <= around_s
        awake_s = around_s - sum(slept_s.values())
        for phase, least_s in slept_s.items():
            assert least_s <= rows[phase]["host_s"] <= least_s + awake_s
        assert {row["num_iterations"] for row in rows.values()} == {4}
        assert {row["device_s"] for row in rows.values()} == {None}

    def test_metrics_do_not_count_into_a_batchs_latency(self) -> None:
        with slept() as sleeps:
            prediction, _, metric_s = predicted(small_case("infer", batch_size=1, workload=Sleeper()), 4)
        others = [row["host_s"] for row in iteration_rows(prediction.batches) if row["phase"] == "other"]
        assert len(others) == 4
        assert min(others) < METRIC_S / 5
        latencies = [iteration.wall_s for iteration in prediction.batches]
        for latency, data_s, forward_s in zip(latencies, sleeps["data"], sleeps["forward"], strict=True):
            assert data_s + forward_s <= latency
        assert sum(latencies) <= prediction.clock.wall_s - metric_s

    def test_the_phases_of_a_load_sum_to_its_wall_time(self, tmp_path: Path) -> None:
        case = small_case("infer", batch_size=1, workload=SlowToBuild())
        save_weights(nn.Linear(1, 1), tmp_path / "w.pt")
        dataset = case.dataset()
        begun = time.perf_counter()
        _, durations = load(case, dataset, tmp_path / "w.pt")
        around_s = time.perf_counter() - begun
        assert tuple(durations) == LOAD_PHASES
        assert all(seconds > 0 for seconds in durations.values())
        assert 0.03 <= durations["build"] <= around_s - durations["read"] - durations["place"]  # it sleeps so long
        assert 0.9 * around_s < sum(durations.values()) <= around_s


class TestRecord:
    def test_loads_then_the_prediction_of_every_sample(self, tmp_path: Path) -> None:
        weights = tmp_path / "w.pt"
        workload = Judged()
        model = saved(workload, weights)
        notes = Notes()
        record = run(tmp_path, [small_case("infer", batch_size=100, workload=workload)],
                     InferencePlan(weights, num_warm_loads=3), notes)
        (case,) = record.entries
        facts = case.passes.inference
        assert (case.status, case.mode, case.num_parameters) == ("ok", "infer", 512 * 256 + 256 * 10)
        assert facts == InferencePass("ok", weights=str(weights), weights_bytes=weights.stat().st_size, num_samples=256,
                                      num_batches=3, setup_s=facts.setup_s, cold_reason=facts.cold_reason)
        assert facts.setup_s > 0
        stages = record.stages
        assert [tuple(key) for key in stages[["stage", "number"]].drop_duplicates().to_numpy()] == [
            *([("load_cold", 1)] if facts.cold_reason is None else []), *(("load_warm", n) for n in (1, 2, 3)),
            ("prediction", 1)]
        prediction = stages[stages["stage"] == "prediction"]
        assert set(prediction["num_samples"]) == {256}
        assert set(prediction["num_iterations"]) == {3}
        assert set(stages[stages["stage"] == "load_warm"]["phase"]) == set(LOAD_PHASES)
        assert (stages["host_s"] >= 0).all()
        assert list(record.iterations["iteration"].unique()) == [0, 1, 2]  # the last one of 56 samples
        assert [told for told in notes.told if told[0] == "pass"] == [("pass", "load"), ("pass", "prediction")]

        samples, labels = small_case(workload=workload).dataset().tensors  # type: ignore[attr-defined]
        share = (model(samples).argmax(1) == labels).float().mean().item()
        accuracy, absent = record.metrics.to_dict("records")
        assert accuracy["value"] == pytest.approx(share)
        assert (accuracy["stage"], accuracy["number"], accuracy["metric"]) == ("prediction", 1, "accuracy")
        assert (absent["metric"], absent["reason"]) == ("absent", "install what it needs")
        assert absent["value"] != absent["value"]

    def test_some_of_the_batches(self, tmp_path: Path) -> None:
        record = run(tmp_path, [small_case("infer", batch_size=100)], InferencePlan(max_batches=2))
        facts = record.entries[0].passes.inference
        assert (facts.num_batches, facts.num_samples) == (2, 200)
        assert list(record.iterations["iteration"].unique()) == [0, 1]

    def test_without_weights_random_ones_are_saved_and_removed(self, tmp_path: Path) -> None:
        record = run(tmp_path, [small_case("infer")], InferencePlan(num_warm_loads=1))
        facts = record.entries[0].passes.inference
        assert (facts.weights, facts.weights_reason) == (None, "random: --weights names none")
        assert facts.weights_bytes > 4 * (512 * 256 + 256 * 10)
        assert not list(record.path.rglob("*.pt"))
        assert set(record.stages["stage"]) >= {"load_warm", "prediction"}

    def test_a_load_that_could_not_be_made_cold_is_not_called_so(
            self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(infer_case, "drop_cached", lambda path: "100% of the file stayed in memory")
        record = run(tmp_path, [small_case("infer")], InferencePlan(num_warm_loads=2))
        assert record.manifest["cases"][0]["passes"]["inference"]["cold_reason"] == "100% of the file stayed in memory"
        assert set(record.stages["stage"]) == {"load_warm", "prediction"}

    def test_weights_are_loaded_in_the_cases_precision(self, tmp_path: Path) -> None:
        case = small_case("infer", precision="pure-bf16")
        original = saved(TwoLayers(), tmp_path / "w.pt")
        model, _ = load(case, case.dataset(), tmp_path / "w.pt")
        assert [parameter.dtype for parameter in model.parameters()] == [torch.bfloat16] * 2
        assert all(torch.equal(ours, theirs.bfloat16()) for ours, theirs in
                   zip(model.parameters(), original.parameters(), strict=True))


class TestFailures:
    @pytest.mark.parametrize(("fail_in", "status", "reason"), [
        ("forward", "error", "ValueError: the model"), ("memory", "oom", "out of memory: ")])
    def test_a_case_that_fails_is_recorded_and_the_sweep_goes_on(
            self, tmp_path: Path, fail_in: str, status: str, reason: str) -> None:
        record = run(tmp_path, [small_case("infer", workload=TwoLayers(fail_in=fail_in)),
                                small_case("infer", batch_size=32)], InferencePlan())
        failed, ok = record.manifest["cases"]
        assert (failed["status"], ok["status"]) == (status, "ok")
        assert failed["reason"].startswith(reason)
        assert "\n" not in failed["reason"]
        assert failed["passes"]["inference"]["status"] == "skipped"
        assert failed["requested_bytes"] == (2**57 if status == "oom" else None)
        assert set(record.stages["case"]) == set(record.iterations["case"]) == {ok["case"]}
        assert not list(record.path.rglob("*.pt"))

    def test_a_signal_ends_the_case_and_keeps_the_finished_ones(self, tmp_path: Path) -> None:
        def at_case(number: int) -> None:
            if number == 2:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

        cases = [small_case("infer"), small_case("infer", batch_size=1, workload=Sleeper()), small_case("infer")]
        writer = RunWriter(tmp_path, "test", {"machine": {}, "software": {}, "options": {}})
        with Interrupt() as interrupt:
            infer_cases(cases, InferencePlan(), writer, Notes(at_case), interrupt)
        assert interrupt.signal == signal.SIGTERM
        ended = [(case["status"], case.get("reason")) for case in writer.manifest["cases"]]
        assert ended == [("ok", None), ("interrupted", "by SIGTERM")]

    def test_weights_of_another_size_are_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        saved(TwoLayers(default_input_size=300), tmp_path / "w.pt")
        check_weights([small_case("infer", workload=TwoLayers(default_input_size=300))], tmp_path / "w.pt")
        with pytest.raises(UserError, match=r"its 0\.weight is 256×300, the model's 256×512"):
            check_weights([small_case("infer")], tmp_path / "w.pt")


class TestPageCache:
    def test_a_file_that_was_just_read_is_in_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(os.urandom(1_000_000))
        path.read_bytes()
        assert cached_frac(path) == 1.0

    def test_dropping_empties_it_or_tells_why_not(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(os.urandom(1_000_000))
        reason = drop_cached(path)
        assert (cached_frac(path) == 0.0) == (reason is None)
        assert path.stat().st_size == 1_000_000

    @pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")
    def test_a_file_system_in_memory_keeps_its_files_there(self) -> None:
        path = Path(f"/dev/shm/charact-test-{os.getpid()}")
        try:
            path.write_bytes(bytes(100_000))
            assert drop_cached(path) == ("100% of the file stayed in memory (a file system in memory, or another "
                                         "process uses it)")
        finally:
            path.unlink()

    def test_elsewhere_than_on_linux_the_reason_says_so(
            self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        assert drop_cached(tmp_path / "any") == "darwin has no posix_fadvise that drops cached pages"
