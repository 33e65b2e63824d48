"""What the record of a log program says of its loaders and models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.watched import cases, watched
from torch.optim.swa_utils import AveragedModel

from charact.core.errors import UserError
from charact.core.timeline import Interval, Iteration, Mode
from charact.measure.script.spans.event_log_reader import EventLog
from charact.measure.script.spans.event_log_to_record import (
    loaders_batch_size,
    num_samples,
    script_cases,
    script_options,
)
from charact.record.manifest_program import OwnTime, ProgramFacts

TRAINING, VALIDATION, UNKNOWN = 11, 12, 13
OWNERS = {TRAINING: {"batch_size": 8}, VALIDATION: {"batch_size": 100}, UNKNOWN: {"batch_size": None}}


def iteration(*loaders: int) -> Iteration:
    fetches = [Interval("data", 10 * place, 10 * place + 5, loader) for place, loader in enumerate(loaders)]
    return Iteration(0, 100, [*fetches, Interval("forward", 90, 95, 21)])


@pytest.mark.parametrize(("iterations", "per_iteration", "of_all"), [
    ([iteration(TRAINING)] * 3, 8, 24),
    ([iteration(*4 * [TRAINING])] * 5 + [iteration(TRAINING)], 32, 168),  # a rest at the end
    ([iteration(TRAINING), iteration()] * 3, 8, 24),  # two steps on a batch
    ([iteration(TRAINING)] * 3 + [iteration(VALIDATION)], 8, 124),
    ([iteration(TRAINING, VALIDATION)] * 3, 8, 24),  # two loaders
    ([iteration(UNKNOWN)] * 3, None, None), ([iteration()], None, None),
])
def test_samples_are_those_of_the_most_used_loader(iterations: list[Iteration], per_iteration: int | None,
                                                   of_all: int | None) -> None:
    assert loaders_batch_size(OWNERS, iterations) == per_iteration
    assert num_samples(OWNERS, iterations) == of_all


@pytest.mark.parametrize(("skip", "limit", "num_iterations", "warmup", "expected"), [
    (None, None, 20, 3, 17), (None, None, 8, 2, 6), (None, None, 3, 0, 3), (None, 4, 6, 2, 4), (None, 4, 20, 3, 4),
    (5, None, 20, 5, 15), (0, 7, 20, 0, 7)])
def test_the_first_iterations_are_left_out(skip: int | None, limit: int | None, num_iterations: int, warmup: int,
                                           expected: int) -> None:
    log = EventLog([Iteration(begin, begin + 1, training=False) for begin in range(num_iterations)])
    ((entry, _),) = cases(log, skip=skip, limit=limit)
    timing = entry.passes.timing
    assert (timing.num_warmup_iterations, timing.num_iterations) == (warmup, expected)
    assert timing.ended_by == ("max_iterations" if expected == limit else "program")


def of_parts(owners: dict[int, dict[str, Any]], *intervals: tuple[str, int, Mode]) -> set[tuple[str, str | None]]:
    """Phases and parts of an iteration with intervals of given phases, owners and modes."""
    log = EventLog([Iteration(0, 100, [
        Interval(phase, 10 * place, 10 * place + 5, owner, mode=mode)
        for place, (phase, owner, mode) in enumerate(intervals)])], owners.values())
    ((_, tables),) = cases(log)
    return {(row["phase"], row["part"]) for row in tables["iterations"] if row["phase"] != "other"}


def a_model(number: int, name: str, *methods: str) -> dict[str, Any]:
    return {"note": "owner", "owner": number, "kind": "model", "class": name, "num_parameters": 1,
            "methods": list(methods)}


def an_optimizer(number: int, *models: int) -> dict[str, Any]:
    return {"note": "owner", "owner": number, "kind": "optimizer", "class": "SGD", "models": list(models)}


GRADIENTS, NO_GRADIENTS, METHOD = Mode.GRADIENTS, Mode.NO_GRADIENTS, Mode.METHOD


def test_forwards_of_a_model_are_apart_by_their_mode() -> None:
    owners = {1: a_model(1, "policy", "generate"), 2: a_model(2, "reference"), 5: an_optimizer(5, 1)}
    intervals = [("forward", 1, METHOD), ("forward", 1, NO_GRADIENTS), ("forward", 2, NO_GRADIENTS),
                 ("forward", 1, GRADIENTS), ("backward", 5, GRADIENTS), ("update", 5, GRADIENTS)]
    assert of_parts(owners, *intervals) == {
        ("forward", "policy.generate"), ("forward", "policy without gradients"), ("forward", "reference"),
        ("forward", "policy"), ("backward", "policy"), ("update", "policy")}
    del owners[2]
    assert ("forward", "policy.generate") in of_parts(owners, *intervals)
    assert of_parts(owners, *intervals[3:]) == {("forward", None), ("backward", None), ("update", None)}


def test_a_backward_is_for_the_update_of_one_of_several_optimizers() -> None:
    owners = {1: a_model(1, "critic"), 2: a_model(2, "generator"), 5: an_optimizer(5, 1), 6: an_optimizer(6, 2)}
    forwards = [("forward", model, GRADIENTS) for model in (1, 2)]
    found = of_parts(owners, *forwards, *((phase, optimizer, GRADIENTS) for optimizer in (5, 6)
                                          for phase in ("loss", "backward", "update")))
    assert found - {("forward", "critic"), ("forward", "generator")} == {
        ("loss", "for critic's update"), ("backward", "for critic's update"), ("update", "critic"),
        ("loss", "for generator's update"), ("backward", "for generator's update"), ("update", "generator")}


def parts(*iterations: list[int], classes: str) -> list[list[str | None]]:
    """Parts of the forwards in each iteration, of models that are all called `model`."""
    owners = [a_model(number, name) | {"variable": "model"} for number, name in enumerate(classes, 1)]
    log = EventLog([
        Iteration(0, 100, [Interval("forward", 10 * place, 10 * place + 5, owner)
                           for place, owner in enumerate(models)], training=False)
        for models in iterations
    ], owners)
    ((_, tables),) = cases(log)
    return [[row["part"] for row in tables["iterations"] if row["iteration"] == number and row["phase"] == "forward"]
            for number in range(len(iterations))]


def test_models_of_one_name_that_run_beside_one_another_are_told_apart() -> None:
    assert parts([1, 2], [1, 2], classes="AA") == 2 * [["model", "model #2"]]


def test_models_of_one_name_and_class_that_follow_one_another_are_one() -> None:
    assert parts([1], [1], [2], [3], classes="AAA") == 4 * [[None]]
    assert parts([1, 2], [3, 4], classes="AAAA") == 2 * [["model", "model #2"]]
    assert parts([1], [2], classes="AB") == [["model"], ["model #2"]]


@pytest.mark.parametrize(("spans", "notes", "expected"), [
    ([(10, 11), (11, 12), (15, 16), (20, 21), (21, 22)], {"end": (7, 25), "timing ended": 20},
     ProgramFacts(18.0, 3.0, 7.0, 3.0, 9, OwnTime(0.0, 0.0))),
    # Iterations take 1 s, in the passes 3 s; the passes take 2 s more; 4 s are before, 5 s after, 1 s between.
    ([(4, 5), (5, 6), (6, 7), (9, 12), (12, 15), (15, 16), (17, 18)],
     {"end": (0, 23), "timing ended": 7, "timing resumed": 15},
     ProgramFacts(17.0, 4.0, 1.0, 5.0, 9, OwnTime(0.0, 6.0))),
    ([(4, 5)], {"end": (0, 6), "started": 1}, ProgramFacts(5.0, 3.0, 0.0, 1.0, 9, OwnTime(1.0, 0.0))),
    ([(4, 5)], {"started": 1}, ProgramFacts(None, None, None, None, None, OwnTime(1.0, 0.0))),
], ids=["passes not ended", "passes", "start", "killed"])
def test_times_of_the_program_are_without_charact_s(spans: list[tuple[int, int]], notes: dict[str, Any],
                                                    expected: ProgramFacts) -> None:
    fields = {kind: {"span_ns": [1e9 * each for each in value], "process_peak_bytes": 9} if kind == "end" else
              {"own_ns" if kind == "started" else "time_ns": value * 10**9} for kind, value in notes.items()}
    log = EventLog([Iteration(begin * 10**9, end * 10**9, training=begin != 17) for begin, end in spans],
                   [{"note": kind, **more} for kind, more in fields.items()])
    (train, _), *others = script_cases(log, "train", "train.py", 0, None)
    assert [train.case, *(case.case for case, _ in others)] == ["train", "train-infer"][:1 + len(others)]
    assert train.passes.timing.program == expected
    assert all(case.passes.timing.program is None for case, _ in others)
    num_in_passes = sum(notes.get("timing ended", 99) < end <= notes.get("timing resumed", 99) for _, end in spans)
    assert train.passes.timing.num_pass_iterations == num_in_passes


def test_parameters_are_those_of_the_trained_model_or_of_all(tmp_path: Path) -> None:
    model, decoder = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters())
    inputs = torch.ones(1, 4)

    def train() -> None:
        model(inputs).sum().backward()
        model[0](inputs)
        optimizer.step()
        average.update_parameters(model)
        with torch.no_grad():
            average(inputs)

    def infer() -> None:
        with torch.no_grad():
            decoder(model[0](inputs))

    for name, step in (("train", train), ("infer", infer)):
        (case, _), *_ = cases(watched(tmp_path / name, lambda step=step: [step() for _ in range(8)]))
        assert (case.mode, case.num_parameters) == (name, 40)


def test_options_of_a_program_are_read_or_refused_in_a_line() -> None:
    options = {"script": "a\udc80.py", "arguments": [], "skip": None, "iterations": 5, "passes": ["memory"]}
    found = script_options({"options": options})
    assert found is not None
    assert (found.script, found.skip, found.iterations, found.passes) == ("a?.py", None, 5, ["memory"])
    assert script_options({"options": {"threads": 1}}) is None
    for damage in ({"skip": "many"}, {"iterations": 0}, {"passes": None}, {"script": 5}):
        with pytest.raises(UserError, match=r"run\.json is corrupt \(options: .*\): restore it from a copy"):
            script_options({"options": options | damage})
