"""Predictions of models that are not ours, with all that people put into theirs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.predictions import CPU, measured_peak, predicted, real_trace, tensor_peak
from torch import nn
from torch.utils.checkpoint import checkpoint

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.measure.memory_estimate.fake_program import CannotEstimate, FakeProgram
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model


class Deep(nn.Module):
    """Layers whose activations are made again in the backward pass, or kept."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
                                    for _ in range(4))
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x


class Own(nn.Module):
    """A layer with a forward pass of its own."""

    def __init__(self, layer: nn.Module, forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self.layer, x)


def attending() -> nn.Module:
    """Whose inference is one operator, which needs the square of the length inside."""
    return Own(nn.MultiheadAttention(64, 4, batch_first=True), lambda layer, x: layer(x, x, x)[0])


def recurrent() -> nn.Module:
    """Steps that C++ takes, and a layer over sequences whose numbers do not lie one after the other."""
    return Own(nn.GRU(32, 64, batch_first=True), lambda layer, x: layer(x)[0])


def padded() -> nn.Module:
    """Layers that do nothing in inference, and an operator whose gradient has a kernel of its own."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Dropout(0.5)) for _ in range(3)))


def one_size() -> nn.Module:
    """Takes no other size than 40."""
    return nn.Sequential(nn.Flatten(), nn.Linear(40 * 64, 10))


class Typed(nn.Module):
    """Numbers of types that its author chose."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, dtype=torch.float32)
        self.register_buffer("scale", torch.ones(64, 64, dtype=torch.float64))
        self.waves = nn.Parameter(torch.ones(64, 64, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.waves.is_complex()
        return self.layer(x) @ self.scale.to(x.dtype) @ self.waves.real.to(x.dtype)


def lazy() -> nn.Module:
    """Learns its shapes from its input."""
    return nn.Sequential(nn.LazyLinear(10))


def sparse() -> nn.Module:
    """Whose gradients have the rows of the words that were read."""
    return nn.Sequential(nn.Embedding(100, 8, sparse=True))


def thinned() -> nn.Module:
    """Whose sparse matrix is as large as there are values other than zero."""
    return Own(nn.Linear(8, 8), lambda layer, x: torch.sparse.mm(x[0].to_sparse(), layer.weight)[None])


MADE_BEFORE = torch.ones(8)


def outside() -> nn.Module:
    """Uses a tensor that was there before."""
    return Own(nn.Linear(8, 8), lambda layer, x: layer(x) + MADE_BEFORE)


def reading() -> nn.Module:
    """Leaves PyTorch."""
    return Own(nn.Linear(8, 8), lambda layer, x: layer(x) * float(x.numpy().sum()))


def choosing() -> nn.Module:
    """Keeps what is positive: how many that is, only numbers tell."""
    return Own(nn.Linear(8, 8), lambda layer, x: layer(x)[layer(x) > 0])


@torch.library.custom_op("charact_tests::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    """An operator without a fake kernel."""
    return x.clone()


def special() -> nn.Module:
    """Calls it."""
    return Own(nn.Linear(8, 8), lambda layer, x: no_fake(layer(x)))


def copied() -> nn.Module:
    """Layers that are deep copies of one, whose loss is over many outputs."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def own_case(name: str, spec: str, size: int, batch: int, arguments: str = "", mode: str = "train",
             precision: str = "fp32") -> Case:
    workload = own_model(f"{__name__}:{name}", arguments, parse_input_spec(spec), None, "SGD", 0.01)
    return Case(workload.prepare(), size, batch, mode, precision, CPU, DataRequest())


@pytest.mark.slow
def test_checkpointing_trades_memory_for_work() -> None:
    kept, again = (own_case("Deep", "Sx256", 64, 8, f"again={again}") for again in (False, True))
    assert predicted(kept).peak_bytes > 1.4 * predicted(again).peak_bytes
    for case in (kept, again):
        assert predicted(case).peak_bytes == pytest.approx(measured_peak(case), rel=2e-3)


@pytest.mark.slow_variants
@pytest.mark.parametrize("case", [
    own_case("attending", "Sx64", 150, 6, mode="infer"), own_case("recurrent", "Sx32", 60, 8, mode="infer"),
    own_case("padded", "Sx64", 60, 8, mode="infer"), own_case("padded", "Sx64", 60, 8),
    own_case("one_size", "Sx64", 40, 4), own_case("Typed", "Sx64", 60, 8), own_case("sparse", "int64[100] S", 70, 8),
], ids=lambda case: case.id)  # fmt: skip
def test_models_of_others(case: Case) -> None:
    prediction, measured = predicted(case), measured_peak(case)
    assert prediction.peak_bytes == pytest.approx(measured, rel=1e-3)
    assert prediction.low_bytes <= measured <= prediction.high_bytes
    assert prediction.facts.workspaces.method == "measured"


@pytest.mark.filterwarnings("ignore:Casting complex")
def test_numbers_of_a_chosen_type_become_of_the_case_s() -> None:
    case = own_case("Typed", "Sx64", 60, 8, precision="pure-bf16")
    assert tensor_peak(FakeProgram(case).trace(case)) == tensor_peak(real_trace(case))


@pytest.mark.parametrize(("name", "spec", "why"), [
    ("choosing", "Sx8", "aten.nonzero"), ("special", "Sx8", r"charact_tests.no_fake.* no fake kernel"),
    ("reading", "Sx8", r"its \.numpy\(\) reads"), ("outside", "Sx8", "aten.add.Tensor gets a tensor"),
    ("lazy", "Sx8", "lazy layers"), ("thinned", "Sx8", "sparse tensors"),
])  # fmt: skip
def test_what_cannot_be_predicted_says_why(name: str, spec: str, why: str) -> None:
    with pytest.raises(CannotEstimate, match=rf"{why}.*--measure") as caught:
        predicted(own_case(name, spec, 2, 4))
    assert "\n" not in str(caught.value)


def test_sums_of_sparse_gradients_are_not_predicted() -> None:
    case = replace(own_case("sparse", "int64[100] S", 7, 2), accumulate=2)
    with pytest.raises(CannotEstimate, match="sparse tensors, whose size depends on values"):
        predicted(case)


def test_copied_layers_and_a_mean_that_keeps_its_terms() -> None:
    workload = own_model(f"{__name__}:copied", "", parse_input_spec("Sx32 -> Sx32"), "mse_loss", "Adam", 0.01)
    case = Case(workload.prepare(), 30, 4, "train", "fp32", CPU, DataRequest())
    assert predicted(case).peak_bytes == pytest.approx(measured_peak(case), rel=1e-3)


@pytest.mark.parametrize("lowest", [0, 1])
def test_a_mask_without_padding_is_skipped_as_in_a_real_run(lowest: int) -> None:
    spec = parse_input_spec(f"input_ids=int64[50] S, attention_mask=int64[{lowest}:2] S, labels=int64[2]")
    workload = own_model(f"{__name__}:bert", "", spec, None, "SGD", 0.01)
    case = Case(workload.prepare(), 60, 8, "infer", "fp32", CPU, DataRequest())
    assert predicted(case).peak_bytes == pytest.approx(measured_peak(case), rel=3e-3)  # the mask has 4 %


def bert() -> nn.Module:
    """An encoder of transformers."""
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64))
    return model
