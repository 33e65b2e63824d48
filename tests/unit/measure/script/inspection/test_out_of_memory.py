"""What held the memory when a program ended because it ran out."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.watched import cases

from charact.measure.script.inspection.out_of_memory import out_of_memory_facts
from charact.measure.script.session import Plan, Session
from charact.measure.script.spans.event_log_reader import read_event_log

MIB = 2**20
CUDA = partial(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 8 GiB in all.")
CPU = partial(RuntimeError, "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you "
                            "tried to allocate 2147483648 bytes. Error code 12 (Cannot allocate memory)")


@pytest.fixture(autouse=True)
def without_tensors_of_other_tests() -> None:
    gc.collect()  # an error and its traceback are a cycle


class Fails(torch.nn.Module):
    """A layer that runs out of memory when `error` is set."""

    error: Exception | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return values


class Net(torch.nn.Module):
    """A layer with 16 MiB of weights, and one that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.inner = torch.nn.Linear(1024, 4096, bias=False), Fails()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.inner(self.large(values))


def run_out(net: Net, error: Exception, num_rows: int) -> BaseException:
    outputs = [torch.ones(num_rows, MIB) for _ in range(4)]  # of 4 MiB a row
    net.inner.error = error
    try:
        net(torch.ones(1, 1024))
    except Exception as raised:
        return raised
    raise AssertionError(outputs)


@pytest.mark.parametrize(("error", "num_rows"), [(CUDA, 6), (CPU, 7), (MemoryError, 8)], ids=["CUDA", "CPU", "Python"])
def test_the_line_the_layer_and_the_largest_holders_are_named(error: Callable[[], Exception], num_rows: int
                                                              ) -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    facts = out_of_memory_facts(run_out(net, error(), num_rows), {"net": net}, [optimizer])
    assert facts is not None
    assert (facts["layer"], facts["text"]) == ("net.inner", "raise self.error")
    assert facts["requested_bytes"] == (None if error is MemoryError else 2**31)
    assert str(Path(facts["file"]).name) == Path(__file__).name
    held = {(each["category"], each.get("layer") or each.get("variable")): each for each in facts["holders"]}
    assert held["optimizer_state", "net.large"]["bytes"] == pytest.approx(32 * MIB, abs=100)  # and a step
    assert held["weights", "net.large"]["bytes"] == held["gradients", "net.large"]["bytes"] == 16 * MIB
    outputs = held["tensors", "outputs"]
    assert (outputs["bytes"], outputs["num_tensors"], outputs["shape"]) == (
        16 * num_rows * MIB, 4, [num_rows, MIB])
    assert [each["bytes"] for each in facts["holders"]] == sorted((each["bytes"] for each in facts["holders"]),
                                                                  reverse=True)


def test_other_errors_are_none() -> None:
    assert out_of_memory_facts(ValueError("too large"), {}, []) is None


def test_the_record_has_it(tmp_path: Path) -> None:
    session = Session(tmp_path, Plan())
    session.start()
    net: Any = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.ones(1, 1024)).sum().backward()
        optimizer.step()
    printed = session.note_out_of_memory(run_out(net, CUDA(), 5))
    assert session.note_out_of_memory(ValueError("no")) is None
    session.close("OutOfMemoryError")
    ((entry, _),) = cases(read_event_log(tmp_path))
    memory = entry.passes.timing.program.out_of_memory
    assert memory == printed
    assert str(memory).startswith("memory ran out at ")
    assert "in layer net.inner, when 2.00 GiB were requested; the largest holders were " in str(memory)
    assert "4 tensors of shape [5, 1048576] in outputs 80.0 MiB" in str(memory)
