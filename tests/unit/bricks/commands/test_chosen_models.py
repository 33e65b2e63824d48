"""Which models, cases and configurations the options of commands choose."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.brick_runs import composition, infer_run

from charact.bricks.commands import _construct
from charact.bricks.commands._construct import chosen_models
from charact.bricks.commands._models import Asked, Named, recreated_source, sources_of
from charact.bricks.commands._run import _cases
from charact.bricks.suite.composition import Composition
from charact.core.errors import UserError
from charact.execution.interrupt import Interrupt
from charact.record.reader import Run

CPU = torch.device("cpu")
NO_OPTIONS: dict[str, Any] = {"input_sizes": None, "batch_sizes": None, "variant": None, "own": {}}
MLP = composition(["a"], case="mlp-8-b1-infer-fp32", model="mlp")
TWO = composition(["a"], case="two-8-b1-infer-bf16", model="two", precision="bf16", facts={"asked_as": "nets:Two"})
TRAINED = composition(["a"], case="mlp-8-b1-train-fp32", model="mlp", mode="train")
OTHER_SIZE = composition(["a"], case="mlp-16-b4-infer-fp32", model="mlp", input_size=16, batch_size=4)
KEPT = [MLP, TWO, TRAINED, OTHER_SIZE]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return infer_run(tmp_path, {"a": 0.01})


def asked(*names: str, **options: Any) -> Asked:
    return Asked(list(names), [], [], **{**NO_OPTIONS, **options})


def chosen(run: Run, request: Asked, kept: list[Composition] = KEPT) -> list[str]:
    return [each.case for each in chosen_models(request, kept, [run], True, Interrupt())[0]]


@pytest.mark.parametrize(("names", "options", "cases"), [
    (["all"], {}, [MLP, TWO, OTHER_SIZE]),  # bricks of bf16 run as those of fp32; none trains
    (["mlp"], {}, [MLP, OTHER_SIZE]), (["nets:Two", "mlp-8-b1-infer-fp32"], {}, [TWO, MLP]),
    (["two", "two"], {}, [TWO]),
    (["all"], {"input_sizes": [16, 32]}, [OTHER_SIZE]), (["all"], {"batch_sizes": [1]}, [MLP, TWO]),
])
def test_stored_compositions_are_chosen_by_name_and_options(
        run: Run, names: list[str], options: dict[str, Any], cases: list[Composition]) -> None:
    assert chosen(run, asked(*names, **options)) == [each.case for each in cases]


@pytest.mark.parametrize(("own", "is_allowed"), [
    ({}, True), ({"model_args": None}, True), ({"model_args": "3"}, True), ({"model_args": "4"}, False)])
def test_arguments_of_own_models_are_compared(own: dict[str, Any], is_allowed: bool) -> None:
    model = replace(TWO, facts={"own": {"model_args": "3"}})
    assert asked("all", own=own).allows(model) == is_allowed
    assert asked("all", own=own).allows(MLP)
    assert asked("all", variant="cifar").allows(MLP)
    assert not asked("all", variant="wide").allows(MLP)


@pytest.mark.parametrize(("names", "kept", "message"), [
    (["all", "mlp"], KEPT, "'all' cannot be combined"), (["all"], [TRAINED], "no compositions of models that fit"),
    (["nothing"], KEPT, "unknown workload 'nothing'"),
])
def test_other_names_are_one_line(run: Run, names: list[str], kept: list[Composition], message: str) -> None:
    with pytest.raises(UserError, match=message):
        chosen(run, asked(*names), kept)


def test_a_model_without_a_composition_is_captured_with_the_suites_cut(
        run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    brick = SimpleNamespace(id="b", layer_types=["relu"])

    def captured(request: Asked, sources: Any, g: int, method: str, *_: object) -> list[Any]:
        calls.append((request.modes, request.precisions, [source.id for source in sources], g, method))
        return [SimpleNamespace(composition=TWO, bricks=[brick])]

    monkeypatch.setattr(_construct, "captured_models", captured)
    request = asked("mlp", input_sizes=[8, 9], batch_sizes=[1])
    models, layer_types = chosen_models(request, [replace(MLP, model="other")], [run], True, Interrupt())
    assert calls == [(["infer"], ["fp32"], ["mlp-9-b1-infer-fp32"], 1, "chains")]
    assert [each.case for each in models] == [MLP.case, TWO.case]
    assert layer_types == {"b": ["relu"]}


@pytest.mark.parametrize(("options", "cases"), [
    ({}, [["infer", "fp32"], ["train", "fp32"]]), ({"modes": ["train"]}, [["train", "fp32"]]),
    ({"precisions": ["bf16"]}, [["infer", "fp32"]]), ({"batch_sizes": [8]}, [["train", "fp32"]]),
    ({"modes": ["infer"], "batch_sizes": [8]}, None), ({"batch_sizes": [1, 3]}, None), ({"precisions": ["tf32"]}, None),
])
def test_cases_of_a_run_are_those_of_the_suite(options: dict[str, Any], cases: list[list[str]] | None) -> None:
    bricks = {"a": {"mode": "infer", "precisions": ["bf16", "fp32"], "batch_sizes": [1]},
              "b": {"mode": "train", "precisions": ["fp32"], "batch_sizes": [1, 8]}}
    suite: Any = SimpleNamespace(path=Path("suite"), bricks=bricks)
    wanted = {"modes": None, "precisions": None, "batch_sizes": None, **options}
    if cases is not None:
        assert _cases(suite, wanted, CPU) == cases
        return
    with pytest.raises(UserError, match=r"suite holds no bricks for these options \(it has infer bf16 at batch "):
        _cases(suite, wanted, CPU)


def test_a_composition_gives_its_source_back_if_its_code_is_named() -> None:
    spec: dict[str, Any] = {"input_spec": "S", "model_args": "in_features=4,out_features=2"}
    request = replace(asked("torch.nn:Linear", input_sizes=[4], batch_sizes=[3], own=spec), modes=["train"],
                      precisions=["bf16"], seed=7)
    (source,) = request.sources()
    model = replace(MLP, **vars(request.configuration(source)))
    for named in (Named.from_command_line(["torch.nn:Linear(in_features=4,out_features=2)"], []),
                  Named.from_command_line([], [], ["torch.nn:Linear"], "in_features=4,out_features=2")):
        again = recreated_source(model, named)
        assert (again.id, again.asked_as, again.case.data.seed) == (source.id, "torch.nn:Linear", 7)
    with pytest.raises(UserError, match=r"add --model 'torch.nn:Linear\(in_features=4,out_features=2\)'$"):
        recreated_source(model, Named.from_command_line(["torch.nn:Linear"], ["nets:loss"]))
    model.facts["own"]["loss"] = "nets:loss"
    with pytest.raises(UserError, match=r"if you trust its code, add --loss nets:loss$"):
        recreated_source(model, Named.from_command_line(["torch.nn:Linear(in_features=4,out_features=2)"], []))
    (workload,) = sources_of(["resnet18"], variant="cifar", input_sizes=[32], batch_sizes=[2])
    stored = replace(MLP, **vars(asked("resnet18").configuration(workload)))
    assert recreated_source(stored, Named()).id == workload.id
    with pytest.raises(UserError, match="does not record its model"):
        recreated_source(replace(stored, facts={"seed": 1}), Named())
