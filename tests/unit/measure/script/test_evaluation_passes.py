"""Passes on the evaluation inside of a training, which `charact.measure.script.session` counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.watched import cases, watched
from torch.utils.data import DataLoader, TensorDataset

from charact.measure.script.spans.event_log_reader import EventLog
from charact.record.in_progress import TRACES
from charact.record.schema import Rows
from charact.traces.reader import read_trace

Cases = dict[str, tuple[Any, dict[str, Rows]]]

PASSES = "operators", "memory"


def recorded(directory: Path, program: Callable[[], None], *passes: str) -> tuple[EventLog, Cases]:
    """Event log, and the cases by mode, of a watched program."""
    log = watched(directory, program, *passes)
    return log, {entry.mode: (entry, tables) for entry, tables in cases(log, *passes, skip=None)}


def training(*, num_epochs: int, num_batches: int, with_target: bool = False) -> Callable[[], None]:
    """A training with 40 batches an epoch and an evaluation after each; a target network may infer each batch."""
    def program() -> None:
        model, target = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(num_epochs):
            for (rows,) in DataLoader(TensorDataset(torch.ones(160, 8)), batch_size=4):
                if with_target:
                    with torch.no_grad():
                        target(rows)
                optimizer.zero_grad()
                model(rows).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for (rows,) in DataLoader(TensorDataset(torch.ones(8 * num_batches, 8)), batch_size=8):
                    torch.mm(model(rows), torch.ones(1, 7)).sum().item()

    return program


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def measured(place: Path) -> tuple[EventLog, Cases]:
    # An evaluation has 6 batches, of which the first three warm up: the passes need several evaluations.
    return recorded(place, training(num_epochs=9, num_batches=6), *PASSES)


def test_an_evaluation_has_operators_and_memory_of_its_own(measured: tuple[EventLog, Cases]) -> None:
    entry, tables = measured[1]["infer"]
    assert {entry.passes[name].status for name in ("operators", "memory", "flop")} == {"ok"}
    assert len(entry.passes.operators.iterations) == 3
    phases = {row["phase"] for row in tables["operators"]}
    assert "forward" in phases
    assert not phases & {"backward", "update"}
    # 3 products of (8 x 8) (8 x 1), in forward, and of (8 x 1) (1 x 7) after it: 2 FLOP for each multiplication.
    assert sum(row["flop"] for row in tables["flop"] if row["flop"]) == pytest.approx(2 * 8 * 8 + 2 * 8 * 7)


def test_the_training_keeps_its_own_passes(measured: tuple[EventLog, Cases]) -> None:
    entry, tables = measured[1]["train"]
    assert {entry.passes[name].status for name in ("operators", "memory")} == {"ok"}
    assert {"backward", "update"} <= {row["phase"] for row in tables["operators"]}


def test_training_and_evaluation_have_a_trace_each(place: Path, measured: tuple[EventLog, Cases]) -> None:
    has_backward = {mode: any("Backward" in event.name for event in read_trace(place / path).events.operators)
                    for mode, path in TRACES.items()}
    assert has_backward == {"train": True, "infer": False}


def test_iterations_that_passes_measured_are_not_timed(measured: tuple[EventLog, Cases]) -> None:
    log, by_mode = measured
    for _, tables in by_mode.values():
        assert {row["kind"] for row in tables["program_iterations"]} >= {"pass", "timed"}
    for begin_ns, end_ns in log.evaluation_spans_ns:
        assert not [one for one in log.timed(log.iterations) if one.start_ns < end_ns and begin_ns < one.end_ns]
        # ... nor does a pass reach into the training.
        assert not [one for one in log.iterations if one.training and one.start_ns < end_ns and begin_ns < one.end_ns]


def test_the_time_of_the_passes_is_charact_s_own(measured: tuple[EventLog, Cases]) -> None:
    log, by_mode = measured
    program = by_mode["train"][0].passes.timing.program
    in_evaluations_s = sum(end - begin for begin, end in log.evaluation_spans_ns) / 1e9
    assert program.own_s.passes > in_evaluations_s > 0
    begin_ns, end_ns = log.last("end")["span_ns"]
    whole_s = (end_ns - begin_ns) / 1e9
    assert program.duration_s + program.own_s.start + program.own_s.passes == pytest.approx(whole_s)


def test_evaluations_that_are_too_short_say_so(tmp_path: Path) -> None:
    _, by_mode = recorded(tmp_path, training(num_epochs=4, num_batches=3), *PASSES)
    reasons = [facts.reason for name, facts in by_mode["infer"][0].passes.items()
               if name in ("operators", "memory") and facts.status != "ok"]
    assert reasons
    assert all(reason.startswith("the program ended before") for reason in reasons)


def test_an_inference_in_each_step_is_no_evaluation(tmp_path: Path) -> None:
    log, by_mode = recorded(tmp_path, training(num_epochs=2, num_batches=2, with_target=True), *PASSES)
    assert not log.evaluation_spans_ns
    assert by_mode["train"][0].passes.operators.status == "ok"


def test_only_the_passes_of_the_training_run(tmp_path: Path) -> None:
    _, by_mode = recorded(tmp_path, training(num_epochs=4, num_batches=12), "memory")
    assert "operators" not in by_mode["infer"][0].passes
    assert by_mode["infer"][0].passes.memory.status == "ok"
