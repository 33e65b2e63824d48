"""Running suites into a record: rows of each brick, failures, and resuming after a signal or a kill."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hand_made_bricks import (
    a_brick,
    a_gradient_sum,
    a_layer,
    a_suite,
    an_input,
    an_update,
    pointwise,
    product,
    value,
)
from support.notes import Notes

from charact import load_run
from charact.bricks.suite.suite import Suite
from charact.bricks.timing.suite_run import SuiteRun, chosen_bricks
from charact.core.errors import UserError
from charact.execution.interrupt import Interrupt
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run
from charact.record.writer import RunWriter

CPU = torch.device("cpu")
RULE = StopRule(precision_target_frac=0.0, max_iterations=7, max_seconds=5.0)
CASE = "bricks-suite-g1-infer-fp32-cpu"

TOO_LARGE = a_brick([], [a_layer("zeros.default", [[2**50]], 0)], [0])
UNKNOWN = a_brick([an_input(4)], [a_layer("no_such_operator.default", [value(0)], 1)], [1])
BROKEN = a_brick([an_input(4)], [a_layer("view.default", [value(0), [3]], 1)], [1])


class AtRound(Notes):
    """Sends a signal after a round."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self.number, self.rounds = number, list[int]()

    def iteration(self, num_iterations: int, median_s: float) -> None:
        super().iteration(num_iterations, median_s)
        self.rounds.append(num_iterations)
        if num_iterations == self.number:
            os.kill(os.getpid(), signal.SIGINT)


def new_writer(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path / "runs", "test", {"machine": {}, "software": {}, "options": {}})


def time_into(writer: RunWriter, suite: Suite, mode: str = "infer", *, notes: Notes | None = None,
              rule: StopRule = RULE, place: tuple[int, int] = (1, 1), **options: Any) -> None:
    with Interrupt() as interrupt:
        SuiteRun(suite, mode, options.pop("precision", "fp32"), CPU, rule, writer, notes or Notes(), interrupt,
                 **options).run(*place)


def run(tmp_path: Path, suite: Suite, mode: str = "infer", **options: Any) -> Run:
    writer = new_writer(tmp_path)
    time_into(writer, suite, mode, **options)
    writer.close("complete")
    return load_run(writer.publish())


def killed(writer: RunWriter) -> RunWriter:
    """The record as another process finds it."""
    os.close(writer._lock)
    return RunWriter.reopen(writer.directory)


def test_every_brick_leaves_its_rows(tmp_path: Path) -> None:
    bricks = [product(), pointwise("relu.default"), pointwise("relu_.default")]
    notes = Notes()
    record = run(tmp_path, a_suite(tmp_path / "suite", *bricks), notes=notes, place=(2, 3))
    assert notes.told[0] == ("case", CASE, 2, 3)
    (case,) = record.cases.to_dict("records")
    assert (case["case"], case["status"], case["workload"], case["variant"]) == (CASE, "ok", "bricks", "suite")
    rows = record.bricks.set_index("brick")
    assert list(rows.index) == sorted(brick.id for brick in bricks)
    assert set(rows["status"]) == {"ok"}
    assert set(rows["num_rounds"]) == {7}
    assert rows["flop"][bricks[0].id] == 2 * 8 * 16 * 16
    assert json.loads(rows["layer_types"][bricks[0].id]) == ["mm"]
    assert json.loads(rows["input_shapes"][bricks[0].id]) == [[8, 16], [16, 16]]
    times = record.brick_times
    assert times.groupby(["brick", "call"])["round"].agg(list).tolist() == [list(range(7))] * 6
    assert set(times["call"]) == {0, 1}
    assert set(times["phase"]) == {"forward"}
    assert (times["host_s"] > 0).all()
    facts = record.entry(CASE).passes.bricks
    assert (facts.status, facts.ended_by, facts.num_rounds, facts.num_failed) == ("ok", "max_rounds", 7, 0)
    assert facts.timed_s == pytest.approx(times["host_s"].sum())
    assert facts.set_up_s == pytest.approx(rows["set_up_s"].sum())
    assert facts.backward_start_s is facts.step_start_s is None
    assert [told[1] for told in notes.told if told[0] == "pass"] == ["bricks", "work"]


@pytest.mark.slow
def test_training_has_its_phases(tmp_path: Path) -> None:
    bricks = [product(mode="train"), an_update(4, 4), a_gradient_sum(4, 4)]
    record = run(tmp_path, a_suite(tmp_path / "suite", *bricks, mode="train"), "train")
    phases = record.brick_times.groupby("brick")["phase"].agg(set)
    assert [phases[brick.id] for brick in bricks] == [{"forward", "backward"}, {"update"}, {"forward"}]
    kinds = record.bricks.set_index("brick")["kind"]
    assert [kinds[brick.id] for brick in bricks] == ["sequence", "update", "gradient_sum"]
    updates = record.brick_times[record.brick_times["phase"] == "update"]
    assert set(updates["num_calls"]) == {4}  # parameters
    facts = record.entry(record.cases["case"][0]).passes.bricks
    for start in ("backward_start_s", "step_start_s"):
        assert getattr(facts, start)["host_s"] > 0
        assert getattr(facts, start)["device_s"] is None


@pytest.mark.slow
def test_enough_is_when_the_sum_is_precise(tmp_path: Path) -> None:
    suite = a_suite(tmp_path / "suite", product(), pointwise("relu.default"))
    facts = run(tmp_path, suite, rule=StopRule(10.0, 100, 60.0)).entry(CASE).passes.bricks
    assert (facts.ended_by, facts.num_rounds) == ("precision", 6)
    assert 0 <= facts.interval_frac <= 10.0
    facts = run(tmp_path, suite, rule=StopRule(0.0, 100, 0.0)).entry(CASE).passes.bricks
    assert (facts.ended_by, facts.num_rounds) == ("max_seconds", 6)


class TestFailures:
    def test_a_brick_that_fails_is_recorded_and_the_others_continue(self, tmp_path: Path) -> None:
        whole = product()
        record = run(tmp_path, a_suite(tmp_path / "suite", whole, TOO_LARGE, UNKNOWN, BROKEN))
        assert list(record.cases["status"]) == ["ok"]
        rows = record.bricks.set_index("brick")
        assert rows["status"].to_dict() == {whole.id: "ok", TOO_LARGE.id: "oom", UNKNOWN.id: "error",
                                            BROKEN.id: "error"}
        assert rows["reason"][TOO_LARGE.id].startswith("out of memory: ")
        assert "a brick may not call operator aten.no_such_operator.default" in rows["reason"][UNKNOWN.id]
        assert rows["reason"][BROKEN.id].startswith("RuntimeError: ")
        assert set(record.brick_times["brick"]) == {whole.id}
        assert record.entry(CASE).passes.bricks.num_failed == 3

    def test_a_brick_whose_work_cannot_be_counted_keeps_its_times(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                ) -> None:
        def no_luck(*_: object, **__: object) -> None:
            raise ValueError("no luck")

        monkeypatch.setattr("charact.bricks.timing.rounds.counted_work", no_luck)
        record = run(tmp_path, a_suite(tmp_path / "suite", brick := product()))
        assert list(record.bricks["status"]) == ["ok"]
        assert record.bricks[["flop", "bytes"]].isna().all(axis=None)
        assert len(record.brick_times) == 14
        assert record.entry(CASE).passes.bricks.undescribed == {brick.id: "ValueError: no luck"}

    @pytest.mark.slow
    def test_a_suite_of_which_nothing_runs_has_failed(self, tmp_path: Path) -> None:
        record = run(tmp_path, a_suite(tmp_path / "suite", UNKNOWN))
        assert list(record.cases["status"]) == ["error"]
        assert record.cases["reason"][0].startswith("every brick failed; the first: a brick may not")
        assert record.brick_times.empty

    def test_missing_bricks_are_one_line(self, tmp_path: Path) -> None:
        suite = a_suite(tmp_path / "suite", product())
        for mode, options, words in (("train", {}, "no bricks for train in fp32"),
                                     ("infer", {"batch_sizes": [4, 3]}, "with these batch sizes and precisions"),
                                     ("infer", {"precision": "tf32"}, "--precision fp32")):
            with pytest.raises(UserError, match=words) as caught:
                time_into(new_writer(tmp_path), suite, mode, **options)
            assert "\n" not in str(caught.value)

    def test_a_brick_that_was_tampered_with_is_one_line(self, tmp_path: Path) -> None:
        suite = a_suite(tmp_path / "suite", brick := product())
        file = tmp_path / "suite" / "bricks" / f"{brick.id}.json"
        file.write_text(file.read_text().replace("mm", "bmm"))
        with pytest.raises(UserError, match=f"{brick.id}.json does not match the suite's index"):
            time_into(new_writer(tmp_path), suite)


def test_bricks_of_other_batch_sizes_and_precisions_are_left_out(tmp_path: Path) -> None:
    small, large = product(rows=1), product(rows=8)
    a_suite(tmp_path / "suite", small, batch_size=1)
    suite = a_suite(tmp_path / "suite", large, batch_size=8)
    for sizes, precisions, ids in (([1, 3], None, {small.id}), (None, ["fp32"], {small.id, large.id}),
                                   ([8], ["bf16", "fp32"], {large.id})):
        assert {brick.id for brick in chosen_bricks(suite, "infer", "fp32", sizes, precisions)} == ids
    with pytest.raises(UserError, match="no bricks for infer in fp32"):
        chosen_bricks(suite, "infer", "fp32", None, ["bf16"])


class TestResuming:
    @pytest.mark.slow
    def test_a_signal_keeps_whole_rounds_and_another_process_continues(self, tmp_path: Path) -> None:
        suite = a_suite(tmp_path / "suite", product(), pointwise("relu.default"), UNKNOWN)
        writer = new_writer(tmp_path)
        time_into(writer, suite, notes=AtRound(3))
        entry = writer.entry(CASE)
        assert entry is not None
        assert (entry.status, entry.reason) == ("interrupted", "by SIGINT")
        partial = load_run(writer.directory, partial=True)
        before = partial.brick_times
        assert before.groupby(["brick", "call"])["round"].agg(list).tolist() == [[0, 1, 2]] * 4

        again, notes = killed(writer), AtRound()
        time_into(again, suite, notes=notes)
        assert notes.rounds == [4, 5, 6, 7]
        again.close("complete")
        record = load_run(again.publish())
        assert list(record.cases["status"]) == ["ok"]
        assert set(record.bricks["status"]) == {"ok", "error"}
        assert record.brick_times.groupby(["brick", "call"])["round"].agg(list).tolist() == [list(range(7))] * 4
        kept = record.brick_times.merge(before, on=["brick", "round", "call"], suffixes=("", "_before"))
        assert len(kept) == 12
        assert (kept["host_s"] == kept["host_s_before"]).all()
        facts = record.entry(CASE).passes.bricks
        assert (facts.num_resumed, facts.num_rounds, facts.num_failed) == (1, 7, 1)
        assert facts.timed_s == pytest.approx(record.brick_times["host_s"].sum())

    def test_a_kill_keeps_what_was_flushed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("charact.bricks.timing.suite_run._FLUSH_EVERY_S", 0.0)
        monkeypatch.setattr("charact.bricks.timing.suite_run._FLUSH_FRAC", 1e9)

        class Killed(AtRound):
            def iteration(self, num_iterations: int, median_s: float) -> None:
                if num_iterations == 4:
                    raise SystemExit  # goes by every handler, as a kill does

        writer = new_writer(tmp_path)
        with pytest.raises(SystemExit):
            time_into(writer, a_suite(tmp_path / "suite", product()), notes=Killed())
        entry = writer.entry(CASE)
        assert entry is not None
        assert (entry.status, entry.passes.bricks.num_rounds) == ("running", 3)
        again, notes = killed(writer), AtRound()
        time_into(again, a_suite(tmp_path / "suite", product()), notes=notes)
        assert notes.rounds == [4, 5, 6, 7]

    @pytest.mark.slow
    def test_a_case_that_has_ended_is_left_alone(self, tmp_path: Path) -> None:
        suite = a_suite(tmp_path / "suite", product())
        writer = new_writer(tmp_path)
        time_into(writer, suite)
        again, notes = killed(writer), Notes()
        time_into(again, suite, notes=notes)
        assert notes.told == []

    @pytest.mark.slow
    def test_another_suite_is_not_resumed(self, tmp_path: Path) -> None:
        suite = a_suite(tmp_path / "suite", product())
        writer = new_writer(tmp_path)
        time_into(writer, suite, notes=AtRound(2))
        other = a_suite(tmp_path / "suite", product(rows=3))
        with pytest.raises(UserError, match="no longer what bricks-suite-g1-infer-fp32-cpu was begun with"):
            time_into(killed(writer), other)
