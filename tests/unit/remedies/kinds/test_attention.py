"""Backends of scaled dot-product attention."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.remedied import chosen, program, refused, tried
from support.watched_programs import operator

from charact.remedies.program import Program

PROGRAM = """
import torch
from torch.nn.functional import scaled_dot_product_attention
facts = {"forward": []}
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))
    def forward(self, x):
        names = [name for name in ("flash", "math") if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]
        facts["forward"].append(names)
        return scaled_dot_product_attention(x * self.scale, x, x).sum()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=.1)
for step in range(2):
    optimizer.zero_grad()
    net(torch.ones(1, 2, 4, 8)).backward()
    optimizer.step()
facts["after"] = torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.math_sdp_enabled()
"""


def attending(backward: str | None = None, **facts: Any) -> Program:
    """Return a program with attention in the forward, and an operator in the backward."""
    of = program(operators={"attention": 0.2}, **facts)
    if backward is not None:
        rows = of.run.operators
        row = {"case": rows["case"].iloc[0], **operator("backward", backward, 0.1, operator_type="attention")}
        of.run._tables["operators"] = pd.concat([rows, pd.DataFrame([row])])
    return of


@pytest.mark.parametrize(("device", "backward", "backends"), [
    ("cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward", ["math"]), ("cpu", "aten::bmm", ["flash"]),
    ("cpu", None, ["flash", "math"]),
    ("cuda:0", "aten::_scaled_dot_product_efficient_attention_backward", ["flash", "cudnn", "math"]),
    ("cuda:0", "aten::_scaled_dot_product_cudnn_attention_backward", ["flash", "efficient", "math"])])
def test_other_backends_than_the_programs(device: str, backward: str | None, backends: list[str]) -> None:
    settings = chosen("attention", attending(backward, device=device))
    assert [setting.values["backend"] for setting in settings] == backends


def test_what_is_expected_is_a_share_of_attention() -> None:
    (setting,) = chosen("attention", attending("aten::bmm"))
    assert setting.expected_frac == pytest.approx(0.2 * 0.3)
    assert "SDPBackend.FLASH_ATTENTION" in setting.change


def test_programs_without_attention() -> None:
    assert "scaled_dot_product" in refused("attention", program(operators={"GEMM": 0.3}))


def test_models_are_called_with_the_backend_alone(tmp_path: Path) -> None:
    trial, without = tried(tmp_path, PROGRAM)
    assert trial.failure is None
    assert without["forward"] == [["flash", "math"]] * 2
    trial, remedied = tried(tmp_path, PROGRAM, ("attention", {"backend": "math"}))
    assert trial.failure is None
    assert remedied["forward"] == [["math"]] * 2
    assert remedied["after"] is True


def test_a_backend_that_cannot_run_is_a_failure(tmp_path: Path) -> None:
    trial, _ = tried(tmp_path, PROGRAM, ("attention", {"backend": "efficient"}))
    assert "backend" in (trial.failure or "")
