"""What the record of a log program says of its loaders and models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from charact.core.errors import UserError
from charact.core.timeline import Interval, Iteration, Mode
from charact.measure.script.session import Plan, Session
from charact.measure.script.spans.event_log_reader import EventLog, read_event_log
from charact.measure.script.spans.event_log_to_record import (
    loaders_batch_size,
    num_samples,
    script_cases,
    script_options,
)
from charact.record.manifest import CaseEntry
from charact.record.manifest_program import OwnTime, ProgramFacts

TRAINING, VALIDATION, UNKNOWN = 11, 12, 13
OWNERS = {TRAINING: {"batch_size": 8}, VALIDATION: {"batch_size": 100}, UNKNOWN: {"batch_size": None}}


def iteration(*loaders: int) -> Iteration:
    fetches = [Interval("data", 10 * place, 10 * place + 5, loader) for place, loader in enumerate(loaders)]
    return Iteration(0, 100, [*fetches, Interval("forward", 90, 95, 21)])


@pytest.mark.parametrize(("iterations", "num_samples"), [
    ([iteration(TRAINING)] * 3, 8),
    ([iteration(TRAINING, TRAINING, TRAINING, TRAINING)] * 5 + [iteration(TRAINING)], 32),  # a rest at the end
    ([iteration(TRAINING)] * 3 + [iteration(VALIDATION)], 8),
    ([iteration(UNKNOWN)] * 3, None),
    ([iteration()], None),
])  # fmt: skip
def test_samples_of_an_iteration(iterations: list[Iteration], num_samples: int | None) -> None:
    assert loaders_batch_size(OWNERS, iterations) == num_samples


@pytest.mark.parametrize(("iterations", "expected"), [
    ([iteration(TRAINING)] * 3, 24),
    ([iteration(TRAINING), iteration()] * 3, 24),  # two steps on a batch
    ([iteration(TRAINING, TRAINING)] * 3 + [iteration(TRAINING)], 56),  # a rest at the end
    ([iteration(TRAINING, VALIDATION)] * 3, 24),  # two loaders
    ([iteration(UNKNOWN)] * 3, None),
    ([iteration()], None),
])  # fmt: skip
def test_samples_of_all_iterations(iterations: list[Iteration], expected: int | None) -> None:
    assert num_samples(OWNERS, iterations) == expected


def of_parts(owners: dict[int, dict[str, Any]], *intervals: tuple[str, int, Mode]) -> set[tuple[str, str | None]]:
    """Phases and parts of an iteration with intervals of given phases, owners and modes."""
    log = EventLog([Iteration(0, 100, [
        Interval(phase, 10 * place, 10 * place + 5, owner, mode=mode)
        for place, (phase, owner, mode) in enumerate(intervals)])], owners.values())
    ((_, tables),) = script_cases(log, "mine", "mine.py", 0, None)
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
    ((_, tables),) = script_cases(log, "fits", "fits.py", 0, None)
    return [[row["part"] for row in tables["iterations"] if row["iteration"] == number and row["phase"] == "forward"]
            for number in range(len(iterations))]


def test_models_of_one_name_that_run_beside_one_another_are_told_apart() -> None:
    assert parts([1, 2], [1, 2], classes="AA") == 2 * [["model", "model #2"]]


def test_models_of_one_name_and_class_that_follow_one_another_are_one() -> None:
    assert parts([1], [1], [2], [3], classes="AAA") == 4 * [[None]]
    assert parts([1, 2], [3, 4], classes="AAAA") == 2 * [["model", "model #2"]]
    assert parts([1], [2], classes="AB") == [["model"], ["model #2"]]


def test_time_outside_of_iterations_and_of_other_passes_is_recorded() -> None:
    iterations = [Iteration(begin * 10**9, (begin + 1) * 10**9, [Interval("forward", begin, begin + 1, 21)],
                            training=training)
                  for begin, training in ((10, True), (11, True), (15, False), (20, True), (21, True))]
    log = EventLog(iterations, [{"note": "end", "span_ns": (7 * 10**9, 25 * 10**9), "process_peak_bytes": 9},
                                {"note": "timing ended", "time_ns": 20 * 10**9}])
    (train, _), (infer, _) = script_cases(log, "train", "train.py", 0, None)
    assert [train.case, infer.case] == ["train", "train-infer"]
    assert train.passes.timing.program == ProgramFacts(18.0, 3.0, 7.0, 3.0, 9, OwnTime(0.0, 0.0))
    assert infer.passes.timing.program is None
    assert [case.passes.timing.num_pass_iterations for case in (train, infer)] == [2, 0]


def test_the_time_of_passes_is_not_the_program_s() -> None:
    """Iterations take 1 s, in the passes 3 s; the passes take 2 s more; 4 s are before, 5 s after, 1 s between."""
    begins = ((4, 5), (5, 6), (6, 7), (9, 12), (12, 15), (15, 16), (17, 18))
    log = EventLog([Iteration(begin * 10**9, end * 10**9, [Interval("forward", begin, end, 21)])
                    for begin, end in begins],
                   [{"note": "end", "span_ns": (0, 23 * 10**9)}, {"note": "timing ended", "time_ns": 7 * 10**9},
                    {"note": "timing resumed", "time_ns": 15 * 10**9}])
    ((train, _),) = script_cases(log, "train", "train.py", 0, None)
    program = train.passes.timing.program
    assert program == ProgramFacts(17.0, 4.0, 1.0, 5.0, None, OwnTime(0.0, 6.0))


def test_the_time_of_charact_s_start_is_not_the_program_s() -> None:
    log = EventLog([Iteration(4 * 10**9, 5 * 10**9, [])], [{"note": "end", "span_ns": (0, 6 * 10**9)},
                                                           {"note": "started", "own_ns": 10**9}])
    ((train, _),) = script_cases(log, "train", "train.py", 0, None)
    program = train.passes.timing.program
    assert program == ProgramFacts(5.0, 3.0, 0.0, 1.0, None, OwnTime(1.0, 0.0))


def cases_of(directory: Path, step: Callable[[], Any]) -> list[CaseEntry]:
    """Entries of the cases of a program of eight steps."""
    session = Session(directory, Plan())
    session.start()
    for _ in range(8):
        step()
    session.close("to its end")
    return [entry for entry, _ in script_cases(read_event_log(directory), "mine", "mine.py", 0, None)]


def test_parameters_are_those_of_the_trained_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        model(torch.ones(1, 4)).sum().backward()
        model[0](torch.ones(1, 4))
        optimizer.step()
        average.update_parameters(model)
        with torch.no_grad():
            average(torch.ones(1, 4))

    training, *_ = cases_of(tmp_path, step)
    assert training.num_parameters == 40


def test_parameters_of_an_inference_are_those_of_all_models(tmp_path: Path) -> None:
    encoder, decoder = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    with torch.no_grad():
        (case,) = cases_of(tmp_path, lambda: decoder(encoder(torch.ones(1, 4))))
    assert case.num_parameters == 40


def test_options_of_a_program_are_read_or_refused_in_a_line() -> None:
    options = {"script": "a\udc80.py", "arguments": [], "skip": None, "iterations": 5, "passes": ["memory"]}
    found = script_options({"options": options})
    assert found is not None
    assert (found.script, found.skip, found.iterations, found.passes) == ("a?.py", None, 5, ["memory"])
    assert script_options({"options": {"threads": 1}}) is None
    for damage in ({"skip": "many"}, {"iterations": 0}, {"passes": None}, {"script": 5}):
        with pytest.raises(UserError, match=r"run\.json is corrupt \(options: .*\): restore it from a copy"):
            script_options({"options": options | damage})
