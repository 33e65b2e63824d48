"""Graph breaks and recompilations of models with known ones: how many, in which line, and why."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from charact.execution.compilations import clear_compilations, compilations


class Net(nn.Module):
    """A linear layer with work around it."""

    def __init__(self, work: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.work, self.number = nn.Linear(4, 4), work, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self, self.linear(x))


def straight(net: Net, x: Tensor) -> Tensor:
    return x.relu()


def prints(net: Net, x: Tensor) -> Tensor:
    print(end="")  # breaks here
    return x.relu()


def branches(net: Net, x: Tensor) -> Tensor:
    if x.sum() > 0:  # breaks here
        x = x + 1
    return x.relu()


def reads_a_number(net: Net, x: Tensor) -> Tensor:
    return x * net.number if net.number < 3 else x  # reads the number


def loops(net: Net, x: Tensor) -> Tensor:
    for _ in range(2):
        x = net.linear(x)
        print(end="")  # leaves the function out
    return x


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    clear_compilations()
    yield
    torch._dynamo.reset()
    clear_compilations()


def compiled(work: Callable[[Net, Tensor], Tensor], *batch_sizes: int, **options: Any) -> dict[str, Any]:
    net = Net(work)
    run = torch.compile(net, backend="eager", **options)
    for size in batch_sizes:
        net.number += 1
        with torch.no_grad():
            run(torch.ones(size, 4))
    found = compilations()
    assert found is not None
    return found


def line_with(comment: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


def test_nothing_is_compiled() -> None:
    Net(straight)(torch.ones(2, 4))
    assert compilations() is None


def test_one_graph_without_breaks() -> None:
    assert compiled(straight, 2, 2) == {
        "num_graphs": 1, "num_graph_breaks": 0, "num_recompilations": 0, "events": []}


@pytest.mark.parametrize(("work", "num_graphs", "reason"), [
    (prints, 2, "print"), (branches, 3, "the branch depends on values of a tensor")])
def test_a_break_has_its_line_and_reason(work: Any, num_graphs: int, reason: str) -> None:
    """PyTorch breaks the graph twice there: once in the forward that calls the function, and in the function."""
    found = compiled(work, 2, 2)
    assert (found["num_graphs"], found["num_graph_breaks"], found["num_recompilations"]) == (num_graphs, 1, 0)
    (event,) = found["events"]
    assert Path(__file__).name == Path(event["file"]).name
    assert event["line"] == work.__code__.co_firstlineno + 1
    assert "breaks here" in event["text"]
    assert reason in event["reason"]
    assert (event["kind"], event["num_times"]) == ("graph break", 2)


def test_a_function_that_is_not_compiled_is_a_break() -> None:
    found = compiled(loops, 2)
    event = found["events"][-1]
    assert (event["kind"], event["line"]) == ("graph break", line_with("leaves the function out"))
    assert event["reason"].startswith("loops is not compiled: Failed to trace")
    assert "print(end" in event["text"]


def test_changing_shapes_compile_again() -> None:
    found = compiled(straight, 2, 3, 5, dynamic=False)
    assert (found["num_graphs"], found["num_graph_breaks"], found["num_recompilations"]) == (3, 0, 2)
    assert all(event["kind"] == "recompilation" and "size mismatch at index 0" in event["reason"]
               for event in found["events"])
    assert {Path(event["file"]).name for event in found["events"]} == {Path(__file__).name}
    assert {event["line"] for event in found["events"]} == {Net.forward.__code__.co_firstlineno}


def test_a_break_counts_once_although_shapes_change() -> None:
    found = compiled(prints, 2, 3, 5, dynamic=False)
    assert found["num_graph_breaks"] == 1
    assert next(event["num_times"] for event in found["events"] if event["kind"] == "graph break") == 4


def test_a_number_that_changes_is_named_with_the_line_that_reads_it() -> None:
    found = compiled(reads_a_number, 2, 2, 2, dynamic=False)
    event = found["events"][0]
    assert event["kind"] == "recompilation"
    assert "number" in event["reason"]
    assert event["line"] == line_with("reads the number")
    assert "net.number" in event["text"]


def test_at_most_twenty_events() -> None:
    with torch._dynamo.config.patch(recompile_limit=64):
        found = compiled(straight, *range(2, 30), dynamic=False)
    assert found["num_recompilations"] == 27
    assert len(found["events"]) == 20


def test_only_the_last_model_counts_after_clearing() -> None:
    compiled(prints, 2)
    torch._dynamo.reset()
    clear_compilations()
    assert compiled(straight, 2)["num_graph_breaks"] == 0
