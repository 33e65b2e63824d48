"""Captured models: their layers, run with the model's own tensors, give what the model gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from charact.bricks.aten import call
from charact.bricks.capture.capture import capture
from charact.bricks.capture.recording import Program, Source
from charact.bricks.commands._models import sources_of
from charact.bricks.suite.captured_graph import CapturedModel, CaptureError, TensorType
from charact.workload.registry import all_workloads

SMALL = {"image": 32, "sequence": 6}


def source_of(name: str, mode: str = "infer", **options: Any) -> Source:
    workload = all_workloads()[name].prepare(options.get("variant"))
    size = max(SMALL[workload.input_kind], workload.smallest_input_size)
    source, = sources_of([name], **{"input_sizes": [size], "batch_sizes": [2], "modes": [mode]} | options)
    return source


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


def check(source: Source, captured: CapturedModel) -> None:
    """Everything that a captured model promises."""
    training = source.case.mode == "train"
    program = Program(source.build())
    with program.real_run(), torch.set_grad_enabled(training):
        wanted = program(*program.fresh_inputs())[0]
    with program.real_run():
        outputs = run(captured, training=training)
    for output, one in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(output, one, rtol=1e-5, atol=1e-5 * one.abs().max().item())
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
    source = source_of(name, mode)
    check(source, capture(source))


@pytest.mark.slow_variants
@pytest.mark.parametrize("precision", ["bf16", "pure-bf16"])
@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("name", ["rnn_lm", "mlp"])
def test_other_precisions_give_what_they_give(name: str, mode: str, precision: str) -> None:
    if (name, precision) == ("rnn_lm", "bf16") and not runs_bf16_lstm():
        pytest.skip("this CPU has no LSTM in bf16")
    source = source_of(name, mode, precisions=[precision])
    captured = capture(source)
    training = mode == "train"
    program = Program(source.build())
    with program.real_run(), torch.set_grad_enabled(training):
        wanted = program(*program.fresh_inputs())[0]
    with program.real_run():
        outputs = run(captured, training=training)
    torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-5)
    assert "bfloat16" in {type.dtype for type in captured.types.values()}
    weights = {captured.types[value].dtype for value, kind in captured.leaves.items() if kind == "weight"}
    assert weights == ({"float32"} if precision == "bf16" else {"bfloat16"})


def test_a_multilayer_perceptron_is_what_it_is() -> None:
    captured = capture(source_of("mlp"))
    assert [layer.operator for layer in captured.layers] == [
        "aten.flatten.using_ints", "aten.linear.default", "aten.relu_.default", "aten.dropout.default",
        "aten.linear.default", "aten.relu_.default", "aten.dropout.default", "aten.linear.default"]
    program = source_of("mlp").build()
    assert captured.num_module_calls == sum(1 for _ in program.model.modules())
    assert captured.num_parameters == sum(parameter.numel() for parameter in program.model.parameters())
    assert sorted(captured.leaves.values()) == ["input"] + ["weight"] * 6
    assert captured.updates == []
    assert captured.requires_grad == frozenset()


def test_layers_know_the_module_that_ran() -> None:
    captured = capture(source_of("resnet18"))
    modules = [layer.module for layer in captured.layers if layer.operator == "aten.conv2d.default"]
    assert modules[:3] == ["conv1", "layer1.0.conv1", "layer1.0.conv2"]
    assert captured.layers[-1].module == "fc"


@pytest.mark.slow
def test_a_training_has_an_update_for_each_parameter() -> None:
    source = source_of("resnet18", "train")
    captured = capture(source)
    parameters = list(source.build().model.parameters())
    assert [update.type.shape for update in captured.updates] == [tuple(one.shape) for one in parameters]
    assert {update.optimizer for update in captured.updates} == {"SGD"}
    options = captured.updates[0].options
    assert (options["lr"], options["momentum"], options["weight_decay"]) == (0.1, 0.9, 5e-4)
    torch.optim.SGD(parameters, **options)
    weights = {value for value, kind in captured.leaves.items() if kind == "weight"}
    assert weights <= captured.requires_grad
    assert captured.outputs[0] in captured.requires_grad
    images = next(value for value, kind in captured.leaves.items() if kind == "input" and captured.types[value].dtype
                  == "float32")
    assert images not in captured.requires_grad


def test_what_is_in_no_brick_is_noted() -> None:
    words = "it clips its gradients"
    assert any(words in note for note in capture(source_of("rnn_lm", "train")).notes)
    assert not any(words in note for note in capture(source_of("rnn_lm")).notes)
    assert not any(words in note for note in capture(source_of("mlp", "train")).notes)


def test_running_statistics_are_written_and_the_model_left_alone() -> None:
    captured = capture(source_of("resnet18", "train"))
    counted = [layer for layer in captured.layers if layer.operator == "aten.add_.Tensor"]
    assert len(counted) == 20
    counters = [captured.tensors[layer.inputs[0]] for layer in counted]
    assert all(counter.item() == 0 for counter in counters)


def test_what_shares_a_storage_is_told() -> None:
    captured = capture(source_of("resnet18"))
    makers = {value: layer for layer in captured.layers for value in layer.outputs}
    for value, base in captured.views.items():
        assert base not in captured.views
        assert makers[value].operator in ("aten.relu_.default", "aten.flatten.using_ints")
        assert base in makers[value].inputs
    assert len(captured.views) == sum(
        layer.operator in ("aten.relu_.default", "aten.flatten.using_ints") for layer in captured.layers)


def test_types_are_those_of_the_tensors() -> None:
    captured = capture(source_of("resnet18"))
    image, = (value for value, kind in captured.leaves.items() if kind == "input")
    assert captured.types[image] == TensorType("float32", (2, 3, 32, 32), (3072, 1024, 32, 1))
    assert captured.types[image].num_bytes == 2 * 3 * 32 * 32 * 4
    assert captured.types[captured.outputs[0]].shape == (2, 1000)


def test_samples_hold_no_values_of_weights() -> None:
    captured = capture(source_of("resnet18", "train"))
    told = {repr(captured.samples[value]) for value, kind in captured.leaves.items()
            if kind == "weight" or (kind == "buffer" and captured.types[value].dtype == "float32")}
    assert told <= {"{'weight': 'normal'}", "{'weight': 'positive'}"}
    assert any("quantiles" in sample for sample in captured.samples.values())


@pytest.mark.slow
def test_capturing_twice_is_the_same() -> None:
    first, second = capture(source_of("seq2seq")), capture(source_of("seq2seq"))
    assert first.layers == second.layers
    assert first.types == second.types
    assert first.samples == second.samples
