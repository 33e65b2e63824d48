"""Models that are hard to capture: written in place, cut off from gradients, dependent on numbers, not to be kept."""


import pytest
import torch
from torch import Tensor

from charact.bricks.aten import call
from charact.bricks.capture.capture import Interpretation, capture
from charact.bricks.capture.recording import Source, recorded
from charact.bricks.commands._models import sources_of
from charact.bricks.suite.captured_graph import CapturedModel, CaptureError

NETS = "support.capture_nets:"


def net(name: str, mode: str = "infer", spec: str = "S", size: int = 4) -> Source:
    source, = sources_of([NETS + name], input_sizes=[size], batch_sizes=[3], modes=[mode], input_spec=spec)
    return source


def run(captured: CapturedModel) -> tuple[list[Tensor], dict[int, Tensor]]:
    values = {value: tensor if captured.leaves[value] == "weight" else tensor.clone()
              for value, tensor in captured.tensors.items()}
    for layer in captured.layers:
        for value, made in zip(layer.outputs, call(layer, values, torch.device("cpu")), strict=True):
            if value is not None:
                values[value] = made
    return [values[value] for value in captured.outputs], values


def operators(captured: CapturedModel) -> list[str]:
    return [layer.operator.split(".")[1] for layer in captured.layers]


@pytest.mark.parametrize(("name", "spec", "mode"), [
    *((name, spec, mode) for mode in ("infer", "train") for name, spec in
      (("Rows", "S"), ("HalfFrozen", "S"), ("Tied", "int64[7] S"), ("WritesInput", "S"), ("DataDependent", "S"))),
    ("ManyOutputs", "S", "infer"),
])
def test_captured_layers_compute_what_the_model_computes(name: str, spec: str, mode: str) -> None:
    source = net(name, mode, spec)
    program = source.build()
    with program.real_run():
        wanted = program(*program.fresh_inputs())[0]
    captured = capture(source)
    assert captured.notes == [] or name == "DataDependent"
    torch.testing.assert_close(run(captured)[0], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["HalfFrozen", "Tied", "Rows"])
def test_gradients_of_the_layers_are_the_models(name: str) -> None:
    source = net(name, "train", "int64[1:7] S" if name == "Tied" else "S")
    captured = capture(source)
    built = source.build()
    built.workload.loss(built.workload.forward(built.model, built.batch), built.batch).backward()
    (loss,), values = run(captured)
    loss.backward()
    wanted = {parameter.grad for parameter in built.model.parameters()}
    weights = [value for value, kind in captured.leaves.items() if kind == "weight"]
    assert {value for value, tensor in values.items() if tensor.requires_grad} == captured.requires_grad
    found = [values[value].grad for value in weights]
    for gradient in wanted - {None}:
        assert any(one is not None and one.shape == gradient.shape and torch.allclose(one, gradient) for one in found)
    assert sum(one is not None for one in found) == len(wanted - {None})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nothing_is_told_of_what_is_made_of_weights_alone(precision: str) -> None:
    source, = sources_of([f"{NETS}Private"], input_sizes=[4], batch_sizes=[3], modes=["infer"], input_spec="S",
                         precisions=[precision])
    captured = capture(source)
    told = [sample for sample in captured.samples.values() if "weight" not in sample]
    # Of integers their range; whole are the places alone, which are made of nothing, and quantiles are those of the
    # input and of the product with it.
    assert [sample for sample in told if "low" in sample] == [{"low": -44, "high": 33}, {"low": -132, "high": 66}]
    assert sorted(next(iter(sample)) for sample in told) == ["low", "low", "quantiles", "quantiles", "whole"]


def test_where_gradients_are_off_the_recorder_leaves_them_behind() -> None:
    built = net("HalfFrozen", "train").build()
    found = Interpretation(recorded(built)[0], True, built.case.device)
    found.run()
    assert [layer.operator for layer in found.layers].count("aten.detach.default") == 2


def test_what_nobody_reads_is_kept_since_it_ran() -> None:
    assert operators(capture(net("HalfFrozen"))) == ["linear", "linear", "linear", "linear", "add"]


def test_a_weight_that_is_used_twice_is_one_leaf() -> None:
    captured = capture(net("Tied", spec="int64[7] S"))
    assert sorted(captured.leaves.values()) == ["input", "weight"]
    fill, = (layer for layer in captured.layers if layer.operator == "aten.masked_fill.Scalar")
    assert fill.args[2] == {"float": "-inf"}


def test_results_that_are_lists_are_values_of_their_own() -> None:
    captured = capture(net("ManyOutputs"))
    split = captured.layers[1]
    assert (split.operator, split.several, len(split.outputs)) == ("aten.split.Tensor", True, 2)
    cast = next(layer for layer in captured.layers if {"dtype": "float64"} in [*layer.args, *layer.kwargs.values()])
    assert captured.types[cast.outputs[0] or 0].dtype == "float64"
    assert len(captured.outputs) == 2


def test_numbers_that_decide_are_taken_as_they_are() -> None:
    captured = capture(net("DataDependent"))
    assert 1 <= operators(captured).count("linear") <= 20
    assert operators(captured).count("item") == operators(captured).count("linear") + 1
    assert "its code reads numbers from tensors" in captured.notes[0]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(("name", "message"), [
    ("Checkpointed", "for the backward pass, as torch.utils.checkpoint does"),
    ("CheckpointedByFunction", "for the backward pass, as torch.utils.checkpoint does"),
    ("OwnGradient", "its autograd.Function _Doubled has a custom backward pass"),
])
def test_gradients_of_the_models_own_are_in_no_brick(name: str, message: str) -> None:
    assert operators(capture(net(name)))[0] == "linear"
    with pytest.raises(CaptureError, match=message) as raised:
        capture(net(name, "train"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "message"), [
    ("Sparse", r"support.capture_nets:Sparse cannot be captured: .*(sparse|aten\.)"),
    ("Foreign", r"its operator charact_test\.double\.default is not a PyTorch operator"),
    ("Drawn", r"its operator aten\.rand\.generator is called with a Generator"),
    ("Unmade", r'the model cannot be built in line \d+ of capture_nets.py \(raise OSError\("gone"\)\): OSError: gone'),
    ("Breaks", r'it fails in line \d+ of capture_nets.py \(raise ValueError\("no such luck"\)\): ValueError: no such'),
])
def test_what_cannot_be_captured_is_one_line(name: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as raised:
        capture(net(name))
    assert "\n" not in str(raised.value)


def test_the_fast_path_of_encoders_is_what_inference_runs() -> None:
    source, = sources_of(["torch.nn:TransformerEncoderLayer"], input_sizes=[5], batch_sizes=[2], input_spec="Sx8",
                         model_args="d_model=8,nhead=2,dim_feedforward=16,batch_first=True")
    captured = capture(source)
    assert operators(captured) == ["_transformer_encoder_layer_fwd"]


@pytest.mark.slow
def test_ways_of_cudnn_are_not_told_by_a_machine_without_it() -> None:
    source, = sources_of(["resnet18"], input_sizes=[32], batch_sizes=[1], variant="cifar")
    norms = [layer for layer in capture(source).layers if layer.operator == "aten.batch_norm.default"]
    assert norms
    assert all(layer.args[-1] is True for layer in norms)
