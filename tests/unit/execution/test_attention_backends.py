"""Backends of attention as an axis: the same results by other operators, and what cannot run says why."""

import contextlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.notes import Notes
from support.recording import recorded
from support.small import TwoLayers, small_case
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.attention import unsupported_reason
from charact.execution.case import Case, cases_of
from charact.execution.fake_tensors import fake_case
from charact.execution.loop import Loop
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import Target
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.record.schema import ATTENTION
from charact.views.tables.case_names import short_names
from charact.workload.registry import find_workload

# PyTorch's compiler imports what it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
CPU = torch.device("cpu")
A100 = Target("A100", "cuda", 80 * 2**30, 0, "", (8, 0))


class Attends(nn.Module):
    """Attention of a sequence of 4 words, 2 heads and width 8 to itself."""

    def __init__(self, dropout: float, *, by_module: bool, returns_weights: bool, warns: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.dropout, self.returns_weights, self.warns = dropout, returns_weights, warns
        self.module = nn.MultiheadAttention(16, 2, batch_first=True) if by_module else None

    def forward(self, x: Tensor) -> Tensor:
        if self.warns:
            warnings.warn("mine", stacklevel=1)
        x = self.linear(x)
        if self.module is not None:
            words = x.unflatten(1, (4, 16))
            return self.module(words, words, words, need_weights=self.returns_weights)[0].flatten(1)
        heads = x.unflatten(1, (2, 4, 8))
        return scaled_dot_product_attention(heads, heads, heads, dropout_p=self.dropout).flatten(1)


@dataclass(kw_only=True)
class Attending(TwoLayers):
    """The small workload, with attention."""

    default_input_size: int = 64
    dropout: float = 0.0
    by_module: bool = False
    returns_weights: bool = False
    warns: bool = False

    def model(self, dataset: Any) -> nn.Module:
        return Attends(self.dropout, by_module=self.by_module, returns_weights=self.returns_weights, warns=self.warns)


def attending(attention: str | None, mode: str = "infer", compiled: bool = False, **options: Any) -> Case:
    return small_case(mode, workload=Attending(**options), attention=attention, compiled=compiled, batch_size=4)


def iterated(case: Case, times: int = 1) -> Tensor:
    loop = Loop(case)
    for _ in range(times):
        step = loop.iteration(lambda phase: contextlib.nullcontext())
    return step.outputs.detach()


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_backends_give_the_same_results(mode: str) -> None:
    chosen, flash, math = (iterated(attending(name, mode), 2) for name in (None, "flash", "math"))
    torch.testing.assert_close(flash, math)
    assert torch.equal(flash, chosen)
    assert not torch.equal(flash, math)


def test_backends_run_other_operators_and_are_cases_of_a_run(tmp_path: Path) -> None:
    workload = find_workload("llama").prepare()
    cases = cases_of(workload, [16], [1], ["infer"], ["fp32"], attentions=["flash", "math", "cudnn"], device=CPU,
                     data=DataRequest())
    record = recorded(tmp_path, lambda writer, interrupt: run_cases(
        cases, StopRule(max_iterations=3, max_seconds=1.0), writer, Notes(), interrupt))
    flash, math, cudnn = record.entries
    assert [entry.attention for entry in record.entries] == ["flash", "math", "cudnn"]
    assert [entry.case.split("-")[-2:] for entry in record.entries] == [
        ["flash", "cpu"], ["math", "cpu"], ["cudnn", "cpu"]]
    assert (flash.status, math.status, cudnn.status) == ("ok", "ok", "error")
    assert cudnn.reason == "PyTorch has no cudnn attention for a CPU: use --attention flash or math, or a CUDA device"
    operators = record.operators.groupby("case")["operator"].agg(set)
    assert any("flash" in name for name in operators[flash.case] - operators[math.case])
    assert not any("flash" in name for name in operators[math.case])
    flop = record.flop.groupby("case")["flop"].sum()
    assert flop[flash.case] == flop[math.case] > 0
    assert list(short_names(record.manifest["cases"]).values()) == [
        "flash attention", "math attention", "cudnn attention"]


def test_pytorchs_choice_changes_no_name() -> None:
    assert small_case().id == "two_layers-512-b64-train-fp32-cpu"
    assert "math" not in attending(None).id


class TestRefused:
    @pytest.mark.parametrize("mode", ["train", "infer"])
    @pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_models_without_attention(self, mode: str, compiled: bool) -> None:
        with pytest.raises(UserError, match="does not call scaled_dot_product_attention: leave --attention out"):
            iterated(small_case(mode, attention="math", compiled=compiled))

    def test_modules_of_attention_are_found_unless_they_return_weights(self) -> None:
        iterated(attending("math", by_module=True), 2)
        with pytest.raises(UserError, match="does not call scaled_dot_product_attention"):
            iterated(attending("math", "train", by_module=True, returns_weights=True))

    def test_inputs_that_a_backend_does_not_take(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserError, match=r"^flash attention does not take this .* \(.* dropout\): use another"):
                iterated(attending("flash", dropout=0.5))
        iterated(attending("math", dropout=0.5))

    @pytest.mark.parametrize("name", ATTENTION)
    def test_on_a_cpu(self, name: str) -> None:
        reason = unsupported_reason(name, CPU)
        assert (reason is None) == (name in ("flash", "math"))
        assert unsupported_reason(name, torch.device("cuda")) is None


@pytest.mark.slow
def test_compiled_models_use_the_backend() -> None:
    flash, math = (iterated(attending(name, compiled=True), 2) for name in ("flash", "math"))
    torch.testing.assert_close(flash, math)


def test_warnings_of_a_model_remain() -> None:
    with pytest.warns(UserWarning, match="mine"):
        iterated(attending("math", warns=True))


class TestOnFakeTensors:
    @pytest.mark.parametrize(("device", "name", "substitute"), [
        ("cpu", "flash", "flash"), ("cpu", "math", "math"), ("cuda", "math", "math"), ("cuda", "flash", "fused"),
        ("cuda", "cudnn", "fused"), ("cuda", None, None)])
    def test_a_backend_of_the_cpu_stands_for_that_of_a_gpu(
            self, device: str, name: str | None, substitute: str | None) -> None:
        case = Case(Attending().prepare(), 64, 4, "infer", "fp32", torch.device(device), DataRequest(), attention=name)
        assert fake_case(case).attention == substitute

    def test_math_needs_memory_for_the_weights_of_all_words(self) -> None:
        workload, peaks = find_workload("llama").prepare(), {}
        for name in (None, "math", "flash"):
            case = Case(workload, 256, 1, "infer", "bf16", CPU, DataRequest(), attention=name)
            peaks[name] = Estimator(A100).estimate(case).facts.tensors_bytes
        assert peaks[None] == peaks["flash"] < peaks["math"]

    def test_estimates_name_what_a_gpu_cannot_run(self) -> None:
        case = Case(find_workload("llama").prepare(), 16, 1, "infer", "fp32", CPU, DataRequest(), attention="flash")
        with pytest.raises(UserError, match=r"^flash attention does not take .* compute capability 8.0: use another"):
            Estimator(A100).estimate(case)
