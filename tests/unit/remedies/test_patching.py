"""Changes of a program from outside: arguments of constructors at a line, and calls of the outermost models."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from charact.remedies.patching import OutermostCalls, Unavailable, change_arguments, unavailable

Call = Callable[[], Any]


class Loader:
    """A class with arguments of several kinds."""

    def __init__(self, dataset: Any, size: int = 1, *, workers: int = 0, **others: Any) -> None:
        self.given = {"dataset": dataset, "size": size, "workers": workers, **others}


class Special(Loader):
    """A class of the program's own."""


def module_at(path: Path, text: str) -> dict[str, Any]:
    """Run a file's text as the program's own module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    names: dict[str, Any] = {"__name__": path.stem, "Loader": Loader, "Special": Special}
    exec(compile(text, str(path), "exec"), names)
    return names


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Restore the constructor after the test; the main module's directory is that of the test's files."""
    monkeypatch.setattr(Loader, "__init__", Loader.__init__)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path[1:]])


def arguments_of(names: Mapping[str, Any], function: str) -> dict[str, Any]:
    facts: dict[str, Any] = names[function]().given
    return facts


THREE = """
def first(): return Loader([1])
def second(): return Loader([2], 5, workers=1, more=3)
def both(): return Loader([3]), Loader([4])
"""


@pytest.mark.usefixtures("original")
def test_arguments_change_at_their_line_alone(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", THREE)
    change_arguments(Loader, {"workers": 7}, "train.py", 3)
    assert arguments_of(names, "first") == {"dataset": [1], "size": 1, "workers": 0}
    assert arguments_of(names, "second") == {"dataset": [2], "size": 5, "workers": 7, "more": 3}
    assert [each.given["workers"] for each in names["both"]()] == [0, 0]


@pytest.mark.usefixtures("original")
def test_all_calls_at_the_line_change(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", THREE)
    change_arguments(Loader, {"workers": 7, "size": 2}, "train.py", 4)
    assert [each.given for each in names["both"]()] == [
        {"dataset": data, "size": 2, "workers": 7} for data in ([3], [4])]


@pytest.mark.usefixtures("original")
def test_without_a_line_all_calls_change_but_not_those_of_subclasses(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", THREE + "def special(): return Special([5])\n")
    change_arguments(Loader, {"workers": 7}, None, None)
    assert [arguments_of(names, name)["workers"] for name in ("first", "second", "special")] == [7, 7, 0]


@pytest.mark.usefixtures("original")
def test_a_file_of_the_same_name_elsewhere_is_another(tmp_path: Path) -> None:
    names, others = (module_at(tmp_path / folder / "data.py", THREE) for folder in ("train", "valid"))
    change_arguments(Loader, {"workers": 7}, "train/data.py", 2)
    assert [arguments_of(each, "first")["workers"] for each in (names, others)] == [7, 0]


@pytest.mark.usefixtures("original")
def test_the_line_is_the_programs_own_when_a_library_makes_the_call(tmp_path: Path) -> None:
    library = module_at(tmp_path / "site-packages" / "trainer.py", "def make(): return Loader([1])\n")
    text = "def first(): return make()\ndef second(): return make()\n"
    (tmp_path / "train.py").write_text(text)
    names: dict[str, Any] = {"__name__": "train", "make": library["make"]}
    exec(compile(text, str(tmp_path / "train.py"), "exec"), names)
    change_arguments(Loader, {"workers": 7}, "train.py", 2)
    assert [arguments_of(names, name)["workers"] for name in ("first", "second")] == [0, 7]


@pytest.mark.usefixtures("original")
def test_a_check_sees_the_programs_arguments_of_these_calls_alone(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", THREE)
    seen: list[dict[str, Any]] = []
    change_arguments(Loader, {"workers": 7}, "train.py", 3, lambda arguments: seen.append(dict(arguments)))
    arguments_of(names, "first")
    assert seen == []
    loader = names["second"]()
    assert seen == [{"self": loader, "dataset": [2], "size": 5, "workers": 1, "others": {"more": 3}}]


@pytest.mark.usefixtures("original")
def test_a_check_may_end_the_trial(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", THREE)
    change_arguments(Loader, {"workers": 7}, "train.py", 2, lambda arguments: unavailable("not here"))
    with pytest.raises(Unavailable, match="not here"):
        names["first"]()
    assert arguments_of(names, "second")["workers"] == 1


@pytest.mark.usefixtures("original")
def test_errors_of_the_constructor_stay(tmp_path: Path) -> None:
    names = module_at(tmp_path / "train.py", "def wrong(): return Loader()\n")
    change_arguments(Loader, {"workers": 7}, None, None)
    with pytest.raises(TypeError, match="dataset"):
        names["wrong"]()


class Net(torch.nn.Module):
    """A model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, value: torch.Tensor, *, times: float = 1.0) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(value)) * times
        return result


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Patch calls of modules, until the end of the test."""
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    return lambda **functions: OutermostCalls(**functions) and None


def test_outermost_modules_with_parameters_are_seen_once(calls: Callable[..., None]) -> None:
    seen: list[Any] = []
    calls(on_first=seen.append)
    net, other, dropout = Net(), torch.nn.Linear(2, 1), torch.nn.Dropout()
    for _ in range(2):
        other(dropout(net(torch.ones(1, 2))))
    assert [id(each) for each in seen] == [id(net), id(other)]
    net.first(torch.ones(1, 2))
    assert id(seen[2]) == id(net.first)


def test_a_compiler_sees_the_calls_as_they_are(calls: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    calls(on_first=seen.append, inputs=lambda value: value + 1)
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(1.0)
    assert layer(torch.zeros(1, 2)).item() == 0
    assert seen == []


def test_a_model_that_takes_the_place_of_another_in_memory_is_new(calls: Callable[..., None]) -> None:
    ids: list[int] = []
    calls(on_first=lambda module: ids.append(id(module)))
    for _ in range(50):
        torch.nn.Linear(2, 1)(torch.ones(1, 2))
    assert len(ids) == 50
    assert len(set(ids)) < 50, "no place in memory was used twice"


def test_the_first_call_comes_after_the_change(calls: Callable[..., None]) -> None:
    calls(on_first=lambda module: module.weight.data.fill_(3.0))
    layer = torch.nn.Linear(2, 1, bias=False)
    assert layer(torch.ones(1, 2)).item() == 6.0


def test_inputs_of_outermost_calls_change(calls: Callable[..., None]) -> None:
    calls(inputs=lambda value: value + 1)
    net = Net()
    for layer in (net.first, net.second):
        with torch.no_grad():
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    assert net(torch.ones(1, 2), times=2.0).tolist() == [[6.0, 6.0]]


def test_a_context_is_around_outermost_calls_where_there_is_one(calls: Callable[..., None]) -> None:
    events: list[str] = []

    @contextmanager
    def context() -> Iterator[None]:
        events.append("enter")
        yield
        events.append("exit")

    calls(around=lambda module: None if module.training else context())
    net = Net()
    net.first.register_forward_hook(lambda *_: events.append("forward"))
    net(torch.ones(1, 2))
    assert events == ["forward"]
    net.eval()
    net(torch.ones(1, 2))
    assert events == ["forward", "enter", "forward", "exit"]


def test_after_an_error_calls_are_outermost_again(calls: Callable[..., None]) -> None:
    seen: list[int] = []
    calls(on_first=lambda module: seen.append(id(module)))
    net, other = Net(), Net()
    with pytest.raises(RuntimeError, match="shape"):
        net(torch.ones(1, 3))
    other(torch.ones(1, 2))
    assert seen == [id(net), id(other)]
