"""Settings of a watched program: read from its objects, and from its whole event log."""

import importlib
import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.watched import program_facts, training
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from charact.measure.script.program.settings import (
    loader_settings,
    model_settings,
    optimizer_settings,
    process_settings,
)
from charact.measure.script.spans.event_log_reader import SliceTotals
from charact.measure.script.spans.recorder import Kind, Slice


class Own(torch.optim.Optimizer):
    """An optimizer of the program's own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "foreach": None})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"]


class Heir(torch.optim.SGD):
    """Inherits PyTorch's `step`."""


class Slow(Dataset[torch.Tensor]):
    """Takes 20 ms an item."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.ones(4)


@pytest.mark.parametrize(("create", "implementation"), [
    (torch.optim.Adam, "for-loop"),
    (lambda parameters: torch.optim.Adam(parameters, foreach=True), "foreach"),
    (lambda parameters: torch.optim.AdamW(parameters, fused=True), "fused"),
    (lambda parameters: torch.optim.AdamW(parameters, foreach=False), "for-loop"),
    (Heir, "for-loop"),
    (Own, None),
    (torch.optim.LBFGS, None),
])  # fmt: skip
def test_implementation_is_that_of_the_step(create: Callable[[Any], Any], implementation: str | None) -> None:
    optimizer = create(torch.nn.Linear(4, 3).parameters())
    assert optimizer_settings(optimizer) == {
        "implementation": implementation, "num_tensors": 2, "num_groups": 1,
        "num_parameters": 15, "device": "cpu"}


def test_on_a_gpu_the_default_is_foreach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("torch.optim.optimizer"), "_get_foreach_kernels_supported_devices",
                        lambda: ["cpu"])
    parameters = list(torch.nn.Linear(2, 2).parameters())
    assert optimizer_settings(torch.optim.Adam(parameters))["implementation"] == "foreach"
    learning_rate = torch.tensor(0.1)
    assert optimizer_settings(torch.optim.Adam(parameters, lr=learning_rate))["implementation"] == "for-loop"


def test_settings_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 2).double())
    model[0].register_forward_hook(print)
    model.register_full_backward_hook(print)  # type: ignore[arg-type]
    settings = model_settings(model)
    assert settings["dtypes"] == {"float32": 3 * 8 * 9 + 8 + 4 * 8, "float64": 18}
    assert (settings["num_convolutions"], settings["channels_last"], settings["num_hooks"]) == (1, False, 2)
    assert model_settings(model.to(memory_format=torch.channels_last))["channels_last"] is True
    assert model_settings(torch.nn.Conv2d(3, 8, 1))["channels_last"] is None


def test_wrappers_are_named_apart_from_the_model() -> None:
    model = torch.nn.Linear(2, 2)
    plain, parallel = model_settings(model), model_settings(torch.nn.DataParallel(model))
    assert (plain["class"], plain["parallel"]) == ("Linear", None)
    assert (parallel["class"], parallel["parallel"]) == ("Linear", "DataParallel")


def test_data_in_memory_is_known_and_other_data_is_not() -> None:
    tensors = TensorDataset(torch.ones(4))
    known = [tensors, [1, 2], torch.ones(3), Subset(tensors, [0]), ConcatDataset([tensors, tensors])]
    assert [loader_settings(DataLoader(one))["in_memory"] for one in known] == [True] * 5  # type: ignore[arg-type]
    assert loader_settings(DataLoader(Slow()))["in_memory"] is None


def test_settings_of_a_loader() -> None:
    settings = loader_settings(DataLoader(Slow(), batch_size=3, num_workers=2, multiprocessing_context="fork"))
    assert settings == {
        "class": "DataLoader", "dataset": "Slow", "in_memory": None, "num_items": 4, "batch_size": 3, "num_workers": 2,
        "persistent_workers": False, "prefetch_factor": 2, "pin_memory": False, "multiprocessing_context": "fork"}
    assert loader_settings(DataLoader(Slow()))["multiprocessing_context"] is None


@pytest.mark.usefixtures("reset_compiler")
def test_compilations_are_counted() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            x = x + 1
        return x.relu()

    compiled = torch.compile(function, backend="eager", dynamic=False)
    for length in (1, 2, 3):
        compiled(torch.ones(length))
    settings = process_settings()["compile"]
    assert settings["num_graph_breaks"] == 1
    assert settings["num_recompilations"] >= 2
    assert "size mismatch" in settings["events"][0]["reason"]
    assert Path(settings["events"][0]["file"]).name == Path(__file__).name


@pytest.fixture
def reset_compiler() -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def line_of(text: str) -> int:
    """Line of this file that has a text first."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_places_are_the_program_s_calls_of_the_constructors(tmp_path: Path) -> None:
    def program() -> Any:
        model = torch.nn.Linear(4, 1)
        optimizer = Own(model.parameters())  # creates an optimizer
        loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)  # creates a loader
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()
        return model, optimizer, loader

    settings = program_facts(tmp_path, program)["settings"]
    (optimizer,), (loader,) = settings["optimizers"], settings["loaders"]
    assert Path(optimizer["file"]).name == Path(loader["file"]).name == Path(__file__).name
    assert (optimizer["line"], optimizer["class"], optimizer["models"]) == (
        line_of("# creates an optimizer"), "Own", ["model"])
    assert (loader["line"], loader["num_iterators"], loader["num_batches"]) == (line_of("# creates a loader"), 1, 4)


@pytest.mark.parametrize("alike", [True, False])
def test_loaders_of_one_line_are_one_if_they_are_alike(tmp_path: Path, alike: bool) -> None:
    def program() -> Any:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for epoch in range(3):
            for batch in DataLoader(Slow(), batch_size=2 if alike else 1 + epoch):
                model(batch).sum().backward()
                optimizer.step()
        return model, optimizer

    loaders = program_facts(tmp_path, program)["settings"]["loaders"]
    assert [loader["num_iterators"] for loader in loaders] == ([3] if alike else [1, 1, 1])
    assert sum(loader["num_batches"] for loader in loaders) == (6 if alike else 4 + 2 + 2)
    slept_s = 3 * 4 * 0.02
    starts_s = [start_s for loader in loaders for start_s in loader["start_s"]]
    assert slept_s <= sum(loader["wait_s"] for loader in loaders) < 3 * slept_s
    assert len(starts_s) == 3
    assert 0.02 <= min(starts_s) <= sum(starts_s) <= sum(loader["wait_s"] for loader in loaders)


def test_anomaly_detection_is_a_share_of_the_backwards(tmp_path: Path) -> None:
    def set_detection(step: int) -> None:
        torch.autograd.set_detect_anomaly(step < 2, check_nan=False)

    settings = program_facts(tmp_path, training(8, set_detection))["settings"]
    assert (settings["anomaly_frac"], settings["num_backwards"], settings["create_graph"]) == (0.25, 8, None)


def test_inference_with_gradients_and_hooks_that_pile_up_are_counted(tmp_path: Path) -> None:
    """Of 12 calls, 6 train, 4 evaluate with gradients and 2 without."""
    def program() -> Any:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            for _ in range(3):
                model.train()
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
            model.eval()
            model(torch.ones(1, 4))
            model(torch.ones(1, 4))
            with torch.no_grad():
                model(torch.ones(1, 4))
            model.register_forward_hook(lambda *_: None)
        return model, optimizer

    (model,) = program_facts(tmp_path, program)["settings"]["models"]
    assert (model["calls"], model["inference_with_grad"]) == (12, 4)
    assert (model["num_hooks_first"], model["num_hooks_last"]) == (0, 2)
    assert model["num_modules_first"] == model["num_modules_last"] >= 1


@pytest.mark.parametrize(("words", "calls", "inference_with_grad"), [
    ("eval eval bwd step", 2, 0),  # trained in eval mode
    ("eval fetch", 1, 1), ("eval end", 1, 1), ("eval train bwd", 2, 1), ("eval", 1, 1), ("none fetch", 1, 0),
    ("eval bwd fetch", 1, 0), (">eval fetch", 0, 0)])
def test_forwards_in_eval_mode_without_a_backward_are_inference(words: str, calls: int, inference_with_grad: int
                                                                ) -> None:
    kinds = {"bwd": Kind.BACKWARD, "step": Kind.STEP, "fetch": Kind.FETCH, "end": Kind.END}
    totals = SliceTotals(Slice(
        kinds.get(word, Kind.FORWARD), 10 * place, 10 * place + 9, 7, word != "none", word == "train", ends=True,
        begins=word[0] != ">") for place, word in enumerate(words.split()))
    assert (totals.calls[7], totals.inference_with_grad[7]) == (calls, inference_with_grad)
    assert (totals.fetches[7], totals.fetch_ns[7]) == (words.count("fetch"), 9 * len(re.findall("fetch|end", words)))


@pytest.mark.clock
def test_charact_s_own_start_is_not_the_program_s(tmp_path: Path) -> None:
    facts = program_facts(tmp_path, training(1, lambda _: time.sleep(0.1)))
    assert facts["own_s"]["start"] > 0
    assert facts["own_s"]["passes"] == 0
    assert 0.1 <= facts["before_s"] <= facts["duration_s"]
