"""Predictions of memory, against bytes worked out by hand and against real runs of the same iterations."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.predictions import case_of, measured_peak, predicted, real_trace, tensor_peak
from support.small import WIDTH, TwoLayers, small_case
from torch import nn

from charact import memory
from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case, cases_of
from charact.measure.memory_estimate.estimator import MemoryEstimate
from charact.measure.memory_estimate.fake_program import FakeProgram
from charact.record.schema import GENERATING_MODES, MEMORY_ORIGINS, PHASES
from charact.workload.registry import find_workload

BATCH, FEATURES, CLASSES = 64, 512, 10
WEIGHTS = 4 * (FEATURES * WIDTH + WIDTH * CLASSES)
INPUT = 4 * BATCH * FEATURES + 8 * BATCH


def held(prediction: MemoryEstimate, kind: str, phase: str | None = None) -> dict[str, float]:
    held: dict[str, float] = defaultdict(float)
    for row in prediction.rows:
        if row["kind"] == kind and phase in (None, row["phase"]):
            held[row["category"]] += row["bytes"]
    return held


class TestByHand:
    """The small network: two layers without biases and a ReLU between them."""

    def test_training(self) -> None:
        prediction = predicted(small_case("train", batch_size=BATCH))
        forward = held(prediction, "phase_peak", "forward")
        assert forward["weights"] == forward["optimizer_state"] == WEIGHTS
        assert forward["input"] == INPUT
        assert forward["activations"] == 4 * BATCH * 2 * WIDTH  # ReLU's input and output
        update = held(prediction, "phase_peak", "update")
        assert update["gradients"] == WEIGHTS
        assert update["activations"] == 4 * BATCH * CLASSES + 4  # the outputs and the loss
        assert prediction.peak_bytes == measured_peak(small_case("train", batch_size=BATCH))

    def test_inference_has_weights_input_and_one_activation_after_another(self) -> None:
        peak = held(predicted(small_case("infer", batch_size=BATCH)), "peak")
        assert {category: num_bytes for category, num_bytes in peak.items() if num_bytes} == {
            "weights": WEIGHTS, "input": INPUT, "activations": 4 * BATCH * 2 * WIDTH}

    def test_micro_batches_keep_the_gradients_through_the_forward_pass(self) -> None:
        case = replace(small_case("train", batch_size=BATCH), accumulate=2)
        assert held(predicted(case), "phase_peak", "forward")["gradients"] == WEIGHTS
        assert predicted(case).peak_bytes == measured_peak(case)


@pytest.mark.slow_variants
@pytest.mark.parametrize("case", [
    case_of("resnet18", 40, 2), case_of("resnet18", 40, 2, "infer"), case_of("resnet18", 40, 2, precision="bf16"),
    case_of("rnn_lm", 7, 3, variant="gru"), case_of("rnn_lm", 7, 3, "infer"), case_of("seq2seq", 6, 3),
    case_of("mlp", 28, 8), case_of("convolve2d", 32, 4),
    pytest.param(case_of("transformer", 8, 2), marks=pytest.mark.slow),
    pytest.param(case_of("aoa_reader", 20, 2), marks=pytest.mark.slow),
], ids=lambda case: case.id)  # fmt: skip
def test_tensors_are_exact(case: Case) -> None:
    assert tensor_peak(FakeProgram(case).trace(case)) == pytest.approx(tensor_peak(real_trace(case)), rel=1e-4)


class TestOptimizers:
    """Every state and every temporary of an update."""

    @pytest.mark.parametrize("make", [
        torch.optim.SGD, partial(torch.optim.SGD, momentum=0.9, nesterov=True), torch.optim.Adam,
        partial(torch.optim.Adam, foreach=True), partial(torch.optim.AdamW, fused=True),
        partial(torch.optim.AdamW, foreach=False, amsgrad=True), torch.optim.NAdam, torch.optim.RMSprop,
    ], ids=str)  # fmt: skip
    def test_fake_is_real(self, make: Callable[..., torch.optim.Optimizer]) -> None:
        case = small_case("train", batch_size=8, workload=TwoLayers(optimizer=make))
        assert tensor_peak(FakeProgram(case).trace(case)) == tensor_peak(real_trace(case))


def test_nothing_is_left_changed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    predicted(case_of("mlp", 28, 8, precision="pure-bf16"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_tape_is_the_same_each_time() -> None:
    case = case_of("rnn_lm", 7, 3)
    first, second = (FakeProgram(case).trace(case) for _ in range(2))
    assert [block.num_bytes for block in first.blocks] == [block.num_bytes for block in second.blocks]


@pytest.mark.slow_variants
@pytest.mark.parametrize("case", [
    case_of("resnet18", 128, 4, "infer"), pytest.param(case_of("resnet18", 128, 4), marks=pytest.mark.slow),
    case_of("resnet18", 128, 1, "infer"), case_of("convolve2d", 96, 8, "infer"), case_of("seq2seq", 12, 4, "infer"),
    case_of("seq2seq", 12, 4, "infer", "bf16"), case_of("seq2seq", 12, 4, "infer", "pure-bf16"),
    case_of("mlp", 28, 64, "infer", "pure-bf16"),
    pytest.param(case_of("aoa_reader", 7, 2, "infer"), marks=pytest.mark.slow),
    pytest.param(case_of("rnn_lm", 35, 20), marks=pytest.mark.slow),
], ids=lambda case: case.id)  # fmt: skip
def test_what_operators_need_inside_is_measured(case: Case) -> None:
    prediction, measured = predicted(case), measured_peak(case)
    assert prediction.peak_bytes == pytest.approx(measured, rel=2e-3)
    assert prediction.low_bytes <= measured <= prediction.high_bytes
    assert prediction.facts.workspaces.method == "measured"


class TestRows:
    """What the record gets."""

    prediction = staticmethod(lambda: predicted(case_of("resnet18", 64, 2)))

    @pytest.mark.slow
    def test_moments_are_whole_and_named(self) -> None:
        prediction = self.prediction()
        facts = prediction.facts
        sums: dict[Any, float] = defaultdict(float)
        for row in prediction.rows:
            assert row["method"] == "predicted"
            assert row["origin"] in MEMORY_ORIGINS
            assert row["phase"] in PHASES
            assert row["bytes"] >= 0
            sums[row["kind"], row["phase"], row["moment"]] += row["bytes"]
        (peak,) = (total for (kind, _, _), total in sums.items() if kind == "peak")
        assert peak == facts.peak_bytes == max(sums.values())
        assert peak == sum(getattr(facts, f"{origin}_bytes") for origin in MEMORY_ORIGINS)
        phases = {row["phase"] for row in prediction.rows if row["kind"] == "phase_peak"}
        assert phases == {"data", "forward", "loss", "backward", "update"}
        (layer,) = {row["layer"] for row in prediction.rows if row["kind"] == "peak"}
        (operator,) = {row["operator"] for row in prediction.rows if row["kind"] == "peak"}
        assert operator.startswith("aten::")
        assert layer is None or layer in dict(find_workload("resnet18").prepare().model(_Classes()).named_modules())

    def test_a_batch_of_any_size_takes_no_memory(self) -> None:
        case = case_of("resnet18", 224, 4096)
        program = FakeProgram(replace(case, batch_size=2))
        assert tensor_peak(program.trace(case)) > 80 * 2**30


class _Classes:
    num_classes = 1000


class TestFunctions:
    """`memory.estimate` of what anyone writes."""

    @staticmethod
    def build() -> Callable[[], None]:
        model = nn.Linear(1000, 100, bias=False)
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        x = torch.randn(64, 1000)

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def test_by_hand(self) -> None:
        found = memory.estimate(self.build, device="cpu")
        weights = 4 * 1000 * 100
        held = found.composition.groupby("category")["bytes"].sum()
        assert held["weights"] == held["gradients"] == weights
        assert held["optimizer_state"] == 2 * weights + 4  # and the number of steps
        assert held["input"] == 4 * 64 * 1000
        assert (found.composition["phase"] == "update").all()
        assert found.low_bytes < found.peak_bytes < found.high_bytes
        assert found.high_bytes - found.low_bytes == 2 * 2**14  # nothing here allocates inside
        assert found.fits(found.needed_bytes)
        assert not found.fits(found.needed_bytes - 1)
        assert "weights" in found._repr_html_()

    def test_a_workload_on_a_gpu_that_is_not_there(self) -> None:
        found = memory.estimate("resnet18", input_size=64, batch_size=8, device="a100-80gb")
        facts = found.facts
        assert facts["device"] == "a100-80gb"
        assert facts["rounding_bytes"] > 0
        assert found.needed_bytes >= facts["reserved_peak_bytes"] + facts["context_bytes"]
        assert facts["reserved_peak_bytes"] >= facts["peak_bytes"]
        assert found.fits()
        assert not found.fits("600MiB")

    def test_a_generation_and_adapters(self) -> None:
        def in_category(category: str, **options: Any) -> int:
            found = memory.estimate("llama", variant="tiny", device="cpu", batch_size=3, input_size=16, **options)
            rows = found.composition
            return int(rows.loc[rows["category"] == category, "bytes"].sum())

        num_layers, num_kv_heads, head_width = 4, 2, 32
        assert in_category("kv_cache", mode="decode", output_size=10) == (
            2 * num_layers * num_kv_heads * head_width * (16 + 10) * 3 * 4)
        assert 0 < in_category("optimizer_state", lora_rank=4) < in_category("optimizer_state") / 20

    @pytest.mark.parametrize(("arguments", "message"), [
        ({"what": lambda: 3}, "returned a int: let it create"),
        ({"what": lambda: lambda: None}, "runs no operator"),
        ({"what": "resnett"}, "did you mean"),
        ({"what": "resnet18", "mode": "trian"}, "not one of train, infer"),
        ({"what": "resnet18", "precision": "fp8"}, "not one of fp32"),
        ({"what": "resnet18", "device": "a100-90gb"}, "a100-80gb"),
        ({"what": "resnet18", "device": "16 GiBs"}, "not an amount of memory"),
        ({"what": "torch.nn:Linear"}, "input_spec"),
        ({"what": "vgg11", "input_size": 8}, "too small"),
        ({"what": "vgg11", "mode": "decode"}, "does not generate"),
        ({"what": "llama", "output_size": 8}, "for generation"),
        ({"what": "llama", "mode": "decode", "output_size": 1}, "at least 2"),
        ({"what": "llama", "mode": "decode", "cache": "fp8"}, "not one of static"),
        ({"what": "llama", "attention": "fast"}, "not one of None, flash"),
        ({"what": "llama", "mode": "infer", "lora_rank": 4}, "for training"),
    ])  # fmt: skip
    def test_bad_input(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message) as caught:
            memory.estimate(**arguments)
        assert "\n" not in str(caught.value)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "cache"), [
    (name, cache) for name in ("llama", "seq2seq", "rnn_lm", "transformer", "transformer_lm", "moe", "mistral")
    for cache in find_workload(name).caches])
def test_generations_are_as_measured(name: str, cache: str) -> None:
    """The last token of a decoding, and prompts."""
    for case in cases_of(find_workload(name).prepare(), [24], [2], GENERATING_MODES, ["fp32"], [9], [cache],
                         device=torch.device("cpu"), data=DataRequest()):
        assert predicted(case).peak_bytes == pytest.approx(measured_peak(case), rel=5e-3), case.id


@pytest.mark.parametrize(("prompt", "outputs"), [(6, 9), (6, 10), (6, 30), (40, 5)])
def test_the_cache_of_a_window_is_bounded(prompt: int, outputs: int) -> None:
    for case in cases_of(find_workload("mistral").prepare(), [prompt], [3], GENERATING_MODES, ["fp32"], [outputs],
                         device=torch.device("cpu"), data=DataRequest()):
        num_layers, num_kv_heads, head_width, window = 4, 2, 32, 16
        assert held(predicted(case), "peak")["kv_cache"] == (
            2 * num_layers * num_kv_heads * head_width * min(prompt + outputs, window) * 3 * 4)


def test_a_view_of_a_parameter_in_inference() -> None:
    """As a class token that is expanded to the batch."""
    (case,) = cases_of(find_workload("vit").prepare(), [32], [2], ["infer"], ["fp32"], device=torch.device("cpu"),
                       data=DataRequest())
    assert predicted(case).peak_bytes == measured_peak(case)
