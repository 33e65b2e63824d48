"""torch.compile of the outermost models."""

import shutil
from pathlib import Path

import pytest
from support.remedied import chosen, program, refused, tried

PROGRAM = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    def forward(self, value):
        return self.layers(value)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=.1)
for step in range(3):
    loss = net(torch.ones(2, 4)).sum()
    loss = loss + net.layers(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
from torch._dynamo.utils import counters
facts = {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
"""


def test_programs_that_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/clang++" if name == "clang++" else None)
    (setting,) = chosen("compile", program({"compile": {"num_graphs": 0}}))
    assert setting.expected_frac == pytest.approx(0.1 * (0.2 + 0.4))


def test_programs_that_cannot_be_compiled_or_are(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = {"timing": {"status": "ok", "reason": None, "compile_s": 1.0}}
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++" if name == "g++" else None)
    assert "already" in refused("compile", program(options={"compiled": True}))
    assert "already" in refused("compile", program(passes=timing))
    assert "already" in refused("compile", program({"compile": {"num_graphs": 1}}))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "g++" in refused("compile", program())
    assert chosen("compile", program(device="cuda:0"))  # Triton has a compiler of its own


@pytest.mark.slow
@pytest.mark.skipif(not program().has_compiler, reason="no C++ compiler")
def test_each_model_is_compiled_as_one_graph(tmp_path: Path) -> None:
    without, plain = tried(tmp_path, PROGRAM)
    trial, facts = tried(tmp_path, PROGRAM, ("compile", {}))
    assert (without.failure, trial.failure) == (None, None)
    assert plain == {"graphs": 0, "breaks": 0}
    assert facts == {"graphs": 2, "breaks": 0}
    assert trial.losses == pytest.approx(without.losses, rel=1e-5)
