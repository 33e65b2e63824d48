"""Rows of `program_iterations` (`charact.measure.script.program.facts`): kinds, times, shapes and epochs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.watched import cases, watched
from torch.utils.data import DataLoader, TensorDataset

from charact.core.timeline import Interval, Iteration
from charact.measure.script.program import events as program_events
from charact.measure.script.program.events import ProgramEvents
from charact.measure.script.spans.event_log_reader import EventLog
from charact.record.schema import PHASES, Rows

SECOND = 10**9


def rows_of(log: EventLog, skip: int | None = 0, limit: int | None = None) -> list[Rows]:
    return [tables["program_iterations"] for _, tables in cases(log, skip=skip, limit=limit)]


def column(rows: Rows, name: str) -> list[Any]:
    return [row[name] for row in rows]


def trained(directory: Path, batches: Iterable[Any], first: torch.nn.Module | None = None) -> Rows:
    """Rows of a training on batches, to which another model is applied before."""
    def program() -> Any:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for batch in batches:
            model(batch if first is None else first(batch)).sum().backward()
            optimizer.step()
        return model, optimizer

    (rows,) = rows_of(watched(directory, program))
    return rows


def test_every_iteration_has_a_row_with_its_kind_in_its_case() -> None:
    spans = [(True, 1, 2), (True, 2, 3), (False, 3, 4), (True, 4, 5), (True, 5, 9), (True, 9, 10), (False, 10, 11)]
    log = EventLog([Iteration(begin * SECOND, end * SECOND,
                              [Interval("forward", begin * SECOND, begin * SECOND + SECOND // 4)],
                              training=training)
                    for training, begin, end in spans],
                   [{"note": "began", "time_ns": SECOND // 2}, {"note": "timing ended", "time_ns": 5 * SECOND},
                    {"note": "timing resumed", "time_ns": 9 * SECOND}])
    train, infer = rows_of(log, skip=1)
    assert column(train, "index") == [0, 1, 3, 4, 5]
    assert column(train, "kind") == ["warm-up", "timed", "timed", "pass", "timed"]
    assert column(train, "iteration") == [None, 0, 1, None, 2]
    assert column(train, "start_s") == [0.5, 1.5, 3.5, 4.5, 8.5]
    assert column(train, "wall_s") == [1.0, 1.0, 1.0, 4.0, 1.0]
    assert [(row["index"], row["kind"], row["iteration"]) for row in infer] == [(2, "timed", 0), (6, "timed", 1)]


def test_iterations_beyond_the_requested_number_are_in_no_other_table() -> None:
    log = EventLog([Iteration(begin, begin + 1, [Interval("forward", begin, begin + 1, 21)])
                    for begin in range(4)])
    (rows,) = rows_of(log, skip=1, limit=2)
    assert [(row["kind"], row["iteration"]) for row in rows] == [
        ("warm-up", None), ("timed", 0), ("timed", 1), ("timed", None)]


def test_times_of_the_phases_and_other_sum_to_the_wall_time() -> None:
    intervals = [Interval("data", 0, 10, 1), Interval("forward", 10, 30, 2),
                 Interval("other", 30, 70, 0, compiling=True), Interval("forward", 70, 80, 2),
                 Interval("backward", 85, 95, 0)]
    ((row,),) = rows_of(EventLog([Iteration(0, 100, intervals)]))
    found = {phase: row[f"{phase}_s"] and round(row[f"{phase}_s"] * SECOND) for phase in PHASES}
    assert found == {"data": 10, "forward": 30, "loss": None, "backward": 10, "update": None, "sample": None,
                     "communication": None, "other": 50}
    assert (row["wall_s"], row["compile_s"]) == (100 / SECOND, 40 / SECOND)


@pytest.mark.parametrize(("lengths", "other", "expected"), [
    ((2, 2, 3, 2), None, ["[[2,4]]", "[[2,4]]", "[[3,4]]", "[[2,4]]"]),
    ((2, 5), torch.nn.Linear(4, 4), ["[[2,4],[2,4]]", "[[5,4],[5,4]]"])])
def test_shapes_are_those_of_each_model_s_first_call_where_they_change(
        tmp_path: Path, lengths: tuple[int, ...], other: torch.nn.Module | None, expected: list[str]) -> None:
    batches = [torch.ones(length, 4) for length in lengths]
    assert column(trained(tmp_path, batches, other), "input_shapes") == expected


def test_constant_shapes_are_noted_once_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_events, "MAX_EVENTS", 2)
    events = ProgramEvents()
    events.tensor_class = torch.Tensor
    for batch in (torch.ones(1), torch.ones(1), torch.ones(2), torch.ones(3)):
        events.inputs(7, torch.nn.Module(), (batch,), {})
    (note,) = events.notes()
    assert [row[1:] for row in note["rows"]] == [(7, [(1,)]), (7, [(2,)])]
    assert events.notes() == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_are_found_in_lists_and_named_arguments_and_what_has_no_shape_is_none() -> None:
    events = ProgramEvents()
    events.tensor_class = torch.Tensor
    module = torch.nn.Module()
    events.inputs(1, module, ([torch.ones(1), "text"], 3), {"masks": {"of": torch.ones(2, 2)}, "state": None})
    for layout in (torch.strided, torch.jagged):
        events.inputs(2, module, (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout),), {})
    events.inputs(3, module, ("text",), {})
    (note,) = events.notes()
    assert [row[1:] for row in note["rows"]] == [(1, [(1,), (2, 2)])]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_begins_with_the_first_batch_since_the_loader_was_started(tmp_path: Path, persistent: bool) -> None:
    """Persistent workers serve all epochs through one iterator."""
    loader = DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2, num_workers=int(persistent),
                        persistent_workers=persistent)
    rows = trained(tmp_path, (batch for _ in range(2) for (batch,) in loader))
    assert column(rows, "first_of_epoch") == [1, 0, 0, 1, 0, 0]


def test_in_a_log_without_starts_an_epoch_begins_with_another_iterator() -> None:
    log = EventLog([Iteration(begin, begin + 1, [Interval("data", begin, begin + 1, owner)])
                    for begin, owner in enumerate((5, 5, 6, -1, -1, -2))])
    (rows,) = rows_of(log)
    assert column(rows, "first_of_epoch") == [1, 0, 1, 1, 0, 1]
    assert column(rows, "start_s")[0] == 0
