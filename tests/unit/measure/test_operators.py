"""The operator pass on a real model, and its joins on made-up rows."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.small import small_case

from charact.measure.event_tree import EventTree, Operator, _shapes
from charact.measure.loop import Loop
from charact.measure.operator_types import OPERATOR_TYPES, operator_type
from charact.measure.operators import ProfiledIteration, operator_pass, operator_rows, place_flop
from charact.workload import all_workloads


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trace = tmp_path_factory.mktemp("trace") / "case.pt.trace.json.gz"
    return operator_pass(Loop(small_case("train")), trace), trace


def test_each_matrix_product_is_in_its_phase_and_layer(found: Any) -> None:
    calls: dict[tuple[str, str | None], float] = defaultdict(float)
    for row in found[0].operator_rows:
        if row["operator"] == "aten::mm":
            calls[row["phase"], row["layer"]] += row["num_calls"]
    # Forward: one a layer. Backward: by weight for both, by input for the second only. Layers are Sequential's.
    assert calls == {("forward", "0"): 1, ("forward", "2"): 1, ("backward", "0"): 1, ("backward", "2"): 2}


def test_rows_are_per_iteration_and_fit_into_their_phases(found: Any) -> None:
    operators, _ = found
    seconds: dict[str, float] = defaultdict(float)
    for row in operators.operator_rows:
        assert row["self_host_s"] >= 0
        assert row["device_s"] is None
        seconds[row["phase"]] += row["self_host_s"]
    phase_s = operators.facts["phase_s"]
    assert set(phase_s) == {"data", "forward", "loss", "backward", "update"}
    assert all(0 < seconds[phase] <= phase_s[phase] for phase in phase_s)
    assert sum(phase_s.values()) <= 1.5 * operators.facts["iteration_s"]
    assert operators.kernel_rows == []


def test_the_trace_holds_phases_and_steps(found: Any) -> None:
    events = json.loads(gzip.decompress(found[1].read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert names.count("charact.phase:backward") == 1
    assert [name for name in names if name.startswith("ProfilerStep#")] == ["ProfilerStep#2"]


def test_no_mark_is_left_on_the_model() -> None:
    loop = Loop(small_case("infer"))
    operator_pass(loop, Path("/dev/null"))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loop.model.modules())


def test_operator_time_is_known_by_type_on_every_workload() -> None:
    """At least 98 % of the time of every workload's operators has a type; seconds-long: one iteration at 32 px."""
    unknown: dict[str, float] = {}
    for name in ("resnet18", "resnet50", "vgg11", "vgg16_bn"):
        workload = all_workloads()[name].prepare("cifar")
        case = small_case("train", batch_size=2, workload=workload)
        case = type(case)(workload, 32, 2, "train", "fp32", case.device, case.data)
        rows = operator_pass(Loop(case), Path("/dev/null"), num_iterations=1).operator_rows
        total = sum(row["self_host_s"] for row in rows)
        unknown[name] = sum(row["self_host_s"] for row in rows if row["operator_type"] == "other") / total
        layerless = sum(row["self_host_s"] for row in rows if row["phase"] == "backward" and row["layer"] is None)
        assert layerless <= 0.1 * total, name
    assert all(share <= 0.02 for share in unknown.values()), unknown


@pytest.mark.parametrize(("name", "kind"), [
    ("aten::mkldnn_convolution", "convolution"), ("ConvolutionBackward0", "convolution"),
    ("autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
    ("aten::cudnn_convolution", "convolution"), ("aten::addmm", "GEMM"), ("aten::mm", "GEMM"),
    ("aten::native_batch_norm_backward", "normalization"), ("aten::clamp_min_", "activation"),
    ("aten::threshold_backward", "activation"), ("aten::max_pool2d_with_indices", "pooling"),
    ("aten::_log_softmax_backward_data", "softmax"), ("aten::nll_loss_forward", "loss"),
    ("aten::_foreach_add_", "optimizer"), ("aten::_fused_adamw_", "optimizer"), ("aten::add_", "elementwise"),
    ("aten::rand", "random"), ("aten::empty_strided", "allocation"), ("TBackward0", "view"),
    ("aten::copy_", "data movement"), ("aten::cat", "data movement"), ("aten::mean", "reduction"),
    ("aten::_scaled_dot_product_flash_attention", "attention"), ("aten::lstm", "recurrent"),
    ("aten::mkldnn_rnn_layer", "recurrent"), ("aten::embedding_dense_backward", "embedding"),
    ("aten::_local_scalar_dense", "host sync"), ("torch::autograd::AccumulateGrad", "autograd"),
    ("c10d::allreduce_", "communication"), ("aten::native_dropout", "dropout"), ("mine::strange", "other"),
])
def test_operator_types(name: str, kind: str) -> None:
    assert operator_type(name) == kind
    assert kind in OPERATOR_TYPES


def test_an_unknown_operator_inherits_the_type_around_it() -> None:
    assert operator_type("mine::strange", "GEMM") == "GEMM"


def test_shapes_are_json_and_lists_of_tensors_are_counted() -> None:
    class Tensor:
        sizes = (8, 3)

    Tensor.sizes = [8, 3]  # type: ignore[assignment]
    assert json.loads(_shapes([Tensor(), 1, None, [Tensor(), Tensor()], [1, 2]])) == [[8, 3], "2_tensors"]


def row(phase: str, operator: str, kind: str, layer: str | None, seconds: float) -> dict[str, Any]:
    return {"phase": phase, "operator": operator, "operator_type": kind, "layer": layer, "self_host_s": seconds,
            "device_s": None, "flop": None, "bytes": None}


def test_flop_go_to_the_row_that_holds_the_time_of_their_layer() -> None:
    rows = [row("forward", "aten::convolution", "convolution", "a", 1e-6),
            row("forward", "aten::mkldnn_convolution", "convolution", "a", 1e-2),
            row("forward", "aten::mkldnn_convolution", "convolution", "b", 1e-2)]
    unplaced = place_flop(rows, [
                      {"phase": "forward", "layer": "a", "operator_type": "convolution", "flop": 7.0, "bytes": 3.0},
                      {"phase": "forward", "layer": "a", "operator_type": "convolution", "flop": 1.0, "bytes": 1.0},
                      {"phase": "forward", "layer": "z", "operator_type": "convolution", "flop": 9.0, "bytes": 9.0},
                      {"phase": "forward", "layer": "b", "operator_type": "GEMM", "flop": 5.0, "bytes": None}])
    assert [(entry["flop"], entry["bytes"]) for entry in rows] == [(None, None), (8.0, 4.0), (5.0, None)]
    assert unplaced == {"unplaced_flop": 9.0, "unplaced_bytes": 9.0}


def test_device_time_is_that_of_the_operator_which_launched_the_kernel() -> None:
    call = Operator("forward", "aten::addmm", "GEMM", "0", "[]", self_ns=2_000, correlation_id=5)
    profiled = [ProfiledIteration(EventTree(operators=[call]), {5: 3_000, 6: 1}),
                ProfiledIteration(EventTree(operators=[call]), {5: 5_000})]
    (only,) = operator_rows(profiled)
    assert (only["num_calls"], only["self_host_s"], only["device_s"]) == (1.0, 2e-6, 4e-6)
