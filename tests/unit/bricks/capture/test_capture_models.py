"""Captured models: their layers, run with the model's own tensors, give what the model gives."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from charact.bricks.aten import call
from charact.bricks.capture.capture import capture
from charact.bricks.capture.recording import Source
from charact.bricks.commands._models import sources_of
from charact.bricks.suite.captured_graph import CapturedModel, CaptureError, TensorType
from charact.workload.registry import all_workloads

SMALL = {"image": 32, "sequence": 6}


def source_of(name: str, mode: str = "infer", **options: Any) -> Source:
    workload = all_workloads()[name].prepare(options.get("variant"))
    size = max(SMALL[workload.input_kind], workload.smallest_input_size)
    source, = sources_of([name], **{"input_sizes": [size], "batch_sizes": [2], "modes": [mode]} | options)
    return source


@cache
def captured_of(name: str, mode: str = "infer") -> CapturedModel:
    """A captured workload, which no test may change."""
    return capture(source_of(name, mode))


def runs_bf16_lstm() -> bool:
    lstm = torch.nn.LSTM(4, 4)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            lstm(torch.ones(2, 1, 4))
    except RuntimeError:
        return False
    return True


def test_a_cpu_without_an_lstm_in_bf16_is_named_in_the_message() -> None:
    if runs_bf16_lstm():
        pytest.skip("this CPU has an LSTM in bf16")
    with pytest.raises(CaptureError, match="this CPU cannot run an LSTM in this precision"):
        capture(source_of("rnn_lm", precisions=["bf16"]))


def run(captured: CapturedModel, *, training: bool) -> list[Tensor]:
    """The outputs, from the leaves' own tensors."""
    own = captured.leaves
    values = {value: tensor if own[value] == "weight" else tensor.clone() for value, tensor in captured.tensors.items()}
    with torch.set_grad_enabled(training):
        for layer in captured.layers:
            for value, made in zip(layer.outputs, call(layer, values, torch.device("cpu")), strict=True):
                if value is not None:
                    values[value] = made
    return [values[value] for value in captured.outputs]


def outputs_of(source: Source, captured: CapturedModel) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of the model, and of the captured layers."""
    program, training = source.build(), source.case.mode == "train"
    with program.real_run(), torch.set_grad_enabled(training):
        wanted = program(*program.fresh_inputs())[0]
    with program.real_run():
        return wanted, run(captured, training=training)


def check(source: Source, captured: CapturedModel) -> None:
    """Everything that a captured model promises."""
    for output, wanted in zip(*outputs_of(source, captured), strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())
    made = [value for layer in captured.layers for value in layer.outputs if value is not None]
    assert len(made) == len(set(made)), "a value is made twice"
    assert not set(made) & captured.leaves.keys()
    known = {*captured.leaves, *made}
    read = {value for layer in captured.layers for value in layer.inputs}
    assert read | set(captured.outputs) <= known
    assert captured.types.keys() == known
    assert captured.tensors.keys() == captured.leaves.keys()
    assert captured.samples.keys() == read
    assert [note for note in captured.notes if "clips" not in note] == []


@pytest.mark.slow_variants
@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", [
    "resnet18", "rnn_lm", "seq2seq", pytest.param("aoa_reader", marks=pytest.mark.slow), "transformer_lm", "mlp"])
def test_a_captured_workload_gives_what_it_gives(name: str, mode: str) -> None:
    check(source_of(name, mode), captured_of(name, mode))


@pytest.mark.slow_variants
@pytest.mark.parametrize("precision", ["bf16", "pure-bf16"])
@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", ["rnn_lm", "mlp"])
def test_other_precisions_give_what_they_give(name: str, mode: str, precision: str) -> None:
    if (name, precision) == ("rnn_lm", "bf16") and not runs_bf16_lstm():
        pytest.skip("this CPU has no LSTM in bf16")
    source = source_of(name, mode, precisions=[precision])
    captured = capture(source)
    wanted, outputs = outputs_of(source, captured)
    torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-5)
    assert "bfloat16" in {type.dtype for type in captured.types.values()}
    weights = {captured.types[value].dtype for value, kind in captured.leaves.items() if kind == "weight"}
    assert weights == ({"float32"} if precision == "bf16" else {"bfloat16"})


def test_a_multilayer_perceptron_is_captured_as_it_is() -> None:
    captured, program = captured_of("mlp"), source_of("mlp").build()
    assert [layer.operator for layer in captured.layers] == [
        "aten.flatten.using_ints", "aten.linear.default", "aten.relu_.default", "aten.dropout.default",
        "aten.linear.default", "aten.relu_.default", "aten.dropout.default", "aten.linear.default"]
    assert captured.num_module_calls == sum(1 for _ in program.model.modules())
    assert captured.num_parameters == sum(parameter.numel() for parameter in program.model.parameters())
    assert sorted(captured.leaves.values()) == ["input"] + ["weight"] * 6
    assert (captured.updates, captured.requires_grad) == ([], frozenset())


def test_layers_of_a_resnet_have_their_modules_types_and_storages() -> None:
    captured = captured_of("resnet18")
    modules = [layer.module for layer in captured.layers if layer.operator == "aten.conv2d.default"]
    assert modules[:3] == ["conv1", "layer1.0.conv1", "layer1.0.conv2"]
    assert captured.layers[-1].module == "fc"
    image, = (value for value, kind in captured.leaves.items() if kind == "input")
    assert captured.types[image] == TensorType("float32", (2, 3, 32, 32), (3072, 1024, 32, 1))
    assert captured.types[image].num_bytes == 2 * 3 * 32 * 32 * 4
    assert captured.types[captured.outputs[0]].shape == (2, 1000)
    sharing = ("aten.relu_.default", "aten.flatten.using_ints")
    makers = {value: layer for layer in captured.layers for value in layer.outputs}
    for value, base in captured.views.items():
        assert base not in captured.views
        assert makers[value].operator in sharing
        assert base in makers[value].inputs
    assert len(captured.views) == sum(layer.operator in sharing for layer in captured.layers)


def test_a_training_has_updates_gradients_and_unchanged_statistics() -> None:
    captured = captured_of("resnet18", "train")
    parameters = list(source_of("resnet18", "train").build().model.parameters())
    assert [update.type.shape for update in captured.updates] == [tuple(each.shape) for each in parameters]
    assert {update.optimizer for update in captured.updates} == {"SGD"}
    options = captured.updates[0].options
    assert (options["lr"], options["momentum"], options["weight_decay"]) == (0.1, 0.9, 5e-4)
    torch.optim.SGD(parameters, **options)
    kinds = {kind: {value for value, of in captured.leaves.items() if of == kind} for kind in captured.leaves.values()}
    assert kinds["weight"] | {captured.outputs[0]} <= captured.requires_grad
    assert not captured.requires_grad & (kinds["input"] | kinds["buffer"])
    counted = [layer for layer in captured.layers if layer.operator == "aten.add_.Tensor"]
    assert len(counted) == 20
    assert all(captured.tensors[layer.inputs[0]].item() == 0 for layer in counted)
    private = [value for value in kinds["weight"] | kinds["buffer"] if captured.types[value].dtype == "float32"]
    assert {repr(captured.samples[value]) for value in private} <= {"{'weight': 'normal'}", "{'weight': 'positive'}"}
    assert any("quantiles" in sample for sample in captured.samples.values())


@pytest.mark.parametrize(("name", "mode", "noted"), [("rnn_lm", "train", True), ("rnn_lm", "infer", False),
                                                     ("mlp", "train", False)])
def test_clipped_gradients_are_noted(name: str, mode: str, noted: bool) -> None:
    assert any("it clips its gradients" in note for note in captured_of(name, mode).notes) == noted


@pytest.mark.slow
def test_capturing_twice_is_the_same() -> None:
    first, second = captured_of("seq2seq"), capture(source_of("seq2seq"))
    assert (first.layers, first.types, first.samples) == (second.layers, second.types, second.samples)
