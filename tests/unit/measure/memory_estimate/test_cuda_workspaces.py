"""What CUDA's libraries allocate beside tensors, against what was seen on GPUs, and by hand."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.torch_version import TorchVersion

from charact.core.memory_curve import Block
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op, Recorder
from charact.measure.memory_estimate.cuda_kernels import cuda_kernels
from charact.measure.memory_estimate.cuda_workspaces import cuda_inner, held
from charact.measure.memory_estimate.replay import CachingAllocator
from charact.measure.memory_estimate.target_devices import MIB, target_like

A100, H100, H200, V100, P100 = map(target_like, ("a100-80gb", "h100-80gb", "h200", "v100-16gb", "p100"))
GIB = 2**30
SUPPORT = Path(__file__).parents[3] / "support"


def trace_of(name: str, input_shapes: list[tuple[int, ...]], made_bytes: list[int], item_bytes: int,
            phase: str = "forward") -> AllocationTrace:
    """A trace of one operator."""
    op = Op(name, phase, None, tuple(input_shapes), made=tuple(range(len(made_bytes))), item_bytes=item_bytes)
    return AllocationTrace([Block(num_bytes, phase=phase, birth=1) for num_bytes in made_bytes], [op])


def inside(trace: AllocationTrace, target: Any = A100, **options: Any) -> tuple[int, int, int]:
    """Bytes inside the last operator: at the least, likely, at the most."""
    found = cuda_inner(trace, target, **options)
    low, likely, high = (one.workspaces[-1] for one in (found.low, found.likely, found.high))
    return low, likely, high


@pytest.mark.parametrize(("batch_size", "seen"), [(4, 7_561_728), (128, 144_703_488)])
def test_copies_around_a_convolution_are_what_an_h100_allocated(batch_size: int, seen: int) -> None:
    """The first of ViT-B/16 in bf16, whose three channels are filled up to eight; as two profiler's traces have it."""
    outputs = batch_size * 768 * 14 * 14 * 2
    trace = trace_of("aten::convolution", [(batch_size, 3, 224, 224), (768, 3, 16, 16), (768,)], [outputs], 2)
    low, likely, high = inside(trace, H100)
    assert low <= seen <= high
    assert likely == pytest.approx(seen, rel=0.003)


def test_the_range_holds_what_a_v100_allocated_for_one_channel() -> None:
    """48.01 GiB for a 1×1 transposed convolution in half (pytorch/pytorch issue #31500)."""
    trace = trace_of("aten::convolution", [(1024, 1, 1024, 1024), (1, 1, 1, 1)], [2 * GIB], 2)
    low, likely, high = inside(trace, V100)
    assert likely == pytest.approx(32 * GIB, rel=1e-6)
    assert low <= 48.01 * GIB <= high * 1.001


CONVOLUTIONS = pd.read_csv(SUPPORT / "h200_convolutions.csv")
RECURRENT = pd.read_csv(SUPPORT / "h200_recurrent_layers.csv")


def convolution(row: Any, *, backward: bool) -> tuple[tuple[int, int, int], int]:
    """The range of a convolution of the table, and the bytes that an H200 allocated."""
    item_bytes = 2 if row.precision == "bf16" else 4
    inputs, weight = (row.count, row.channels, row.side, row.side), (row.kernels, row.channels, row.kernel, row.kernel)
    padding = row.kernel // 2
    side = (row.side + 2 * padding - row.kernel) // row.stride + 1
    outputs = (row.count, row.kernels, side, side)
    options = {"tf32": row.precision == "tf32", "channels_last": bool(row.channels_last)}
    if backward:
        trace = trace_of("aten::convolution_backward", [outputs, inputs, weight], [1, 1], item_bytes, "backward")
        return inside(trace, H200, **options), max(row.by_input, row.by_weight)
    trace = trace_of("aten::convolution", [inputs, weight], [math.prod(outputs) * item_bytes], item_bytes)
    return inside(trace, H200, **options), row.forward


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("precision", "channels_last", "off_by"), [
    ("fp32", False, 50e6), ("tf32", False, 20e6), ("bf16", False, 5e6), ("bf16", True, 3e6)])
def test_convolutions_are_within_the_range_and_mostly_near_what_an_h200_allocated(
        precision: str, channels_last: bool, off_by: float, backward: bool) -> None:
    """`off_by` bounds the mean difference (bytes) of the likely amount from what was allocated."""
    rows = CONVOLUTIONS.query("precision == @precision and channels_last == @channels_last")
    assert len(rows) == 131
    found = [convolution(row, backward=backward) for row in rows.itertuples()]
    assert all(low <= seen <= 1.025 * high + 4096 for (low, _, high), seen in found)
    assert fmean(abs(likely - seen) for (_, likely, _), seen in found) < off_by


@pytest.mark.parametrize("row", list(RECURRENT.itertuples()), ids=lambda row: f"{row[1]}-{row[2]}x{row[7]}")
def test_recurrent_layers_are_within_the_range_of_what_an_h200_allocated(row: Any) -> None:
    """Weights in bfloat16 were not in one block, so that the workspaces of others than the training hold a copy."""
    num_gates = 4 if row.cell == "LSTM" else 3
    rows, width = num_gates * row.hidden, row.hidden * row.directions
    inputs, states = (row.steps, row.batch, row.hidden), (row.layers * row.directions, row.batch, row.hidden)
    outputs = (row.steps, row.batch, width)
    weights = [shape for layer in range(row.layers) for _ in range(row.directions)
               for shape in ((rows, width if layer else row.hidden), (rows, row.hidden))]
    shapes = [inputs, *weights, weights[0], states, *([states] if row.cell == "LSTM" else [])]
    copy = row.weights * row.item_bytes if row.item_bytes == 2 else 0
    made = [math.prod(outputs) * row.item_bytes, 1, 1]
    for name, operands, reserve, seen in (
            ("aten::_cudnn_rnn", shapes, row.reserve, row.training),
            ("aten::_cudnn_rnn", shapes, 0, row.inference - copy),
            ("aten::_cudnn_rnn_backward", [*shapes, outputs, outputs], row.reserve, row.backward - copy)):
        low, likely, high = inside(trace_of(name, operands, [*made, reserve], row.item_bytes), H200)
        assert low <= seen <= high
        if row.hidden != 128:  # for which cuDNN takes another algorithm
            assert likely == pytest.approx(seen, rel=0.1)


def test_a_transform_of_a_convolution_counts_for_the_range_but_not_where_memory_is_scarce() -> None:
    """2.4 GB on an H200; PyTorch takes another algorithm where that cannot be allocated."""
    trace = trace_of("aten::convolution", [(16, 256, 56, 56), (256, 256, 3, 3)], [16 * 256 * 56 * 56 * 4], 4)
    found = cuda_inner(trace, H200)
    assert found.high.workspaces == [pytest.approx(2_355_363_840, rel=1e-3)]
    assert found.scarce is not None
    assert found.scarce.workspaces == found.likely.workspaces == [0]


@pytest.mark.parametrize(("side", "transformed"), [(14, 16), (15, 32), (30, 32), (31, 64), (62, 64), (63, 0)])
def test_fouriers_transforms_cover_pictures_with_their_margin(side: int, transformed: int) -> None:
    pixels, weights = 2 * 8 * side**2 * 4, 8 * 8 * 9 * 4
    trace = trace_of("aten::convolution", [(2, 8, side, side), (8, 8, 3, 3)], [pixels], 4)
    fourier = (2 * 8 * 8 + 2 * 2 * 8) * transformed * (transformed // 2 + 1) * 8 + weights
    winograd = 2.25 * (math.ceil(side / 4) * 4 / side) ** 2 * 2 * pixels + 4 * weights
    assert inside(trace)[2] == round(max(fourier, winograd))


def test_without_tensor_cores_there_are_no_copies() -> None:
    trace = trace_of("aten::convolution", [(8, 64, 56, 56), (128, 64, 3, 3)], [8 * 128 * 56 * 56 * 4], 4)
    assert inside(trace)[:2] == (0, 0)
    assert inside(trace, tf32=True)[1] == 4 * 8 * (64 + 128) * 56 * 56 + 4 * 128 * 64 * 9
    assert inside(trace, V100, tf32=True) == inside(trace)


def test_half_precision_on_pascal_has_no_tensor_cores() -> None:
    trace = trace_of("aten::convolution", [(8, 64, 56, 56), (128, 64, 3, 3)], [8 * 128 * 56 * 56 * 2], 2)
    assert inside(trace, P100)[1] == 0
    assert inside(trace, V100)[1] > 0


def recorded_backward(dtype: torch.dtype, queries: int, width: int) -> AllocationTrace:
    """AllocationTrace of attention's backward pass: batch 2, 4 heads."""
    recorder = Recorder(RunningLayer(nn.Module()))
    recorder.begin()
    with FakeTensorMode(), cuda_kernels((8, 0)):
        heads = torch.empty(2, 4, queries, width, dtype=dtype, requires_grad=True)
        outputs = functional.scaled_dot_product_attention(heads, heads, heads)
        with recorder:
            torch.ops.aten.sum(outputs).backward()
    last = next(number for number, op in enumerate(recorder.trace.ops) if op.name.endswith("attention_backward"))
    return AllocationTrace(recorder.trace.blocks, recorder.trace.ops[:last + 1])


def test_flash_sums_the_querys_gradient_in_fp32() -> None:
    """Queries in 128s, widths in 32s, and the dot products with the outputs."""
    expected = 4 * 2 * 4 * 256 * (96 + 1)
    assert inside(recorded_backward(torch.bfloat16, 200, 80)) == (expected, expected, expected)


def test_flash_has_a_gradient_for_each_head_of_the_query() -> None:
    """Llama-3-8B at 8,192 tokens: 32 heads that share 8 heads of keys and values."""
    name, query, keys = ("aten::_scaled_dot_product_flash_attention_backward", (1, 32, 8192, 128), (1, 8, 8192, 128))
    shared = inside(trace_of(name, [query, query, keys, keys], [1], 2, "backward"))
    alone = inside(trace_of(name, [query, query, query, query], [1], 2, "backward"))
    assert [one - other for one, other in zip(shared, alone, strict=True)] == [2 * 2 * 32 * 8192 * 128] * 3


def test_the_efficient_kernel_does_so_in_tiles() -> None:
    assert inside(recorded_backward(torch.float32, 100, 64)) == (
        4 * 8 * 100 * 65, 4 * 8 * 128 * 65, 4 * 8 * 128 * 65)


def test_an_embeddings_gradient_is_sorted_where_there_are_many_indices() -> None:
    few = trace_of("aten::embedding_dense_backward", [(32, 96, 512), (32, 96)], [37_000 * 512 * 4], 4, "backward")
    assert inside(few) == (0, 0, 0)
    many = trace_of("aten::embedding_dense_backward", [(64, 100, 512), (64, 100)], [1000 * 512 * 4], 4, "backward")
    # 6,400 indices of at most 1,000 words: 1,640 sums of 512 numbers.
    indices = 8 * (3 * 6400 + 2 * 1000 + 1640)
    assert inside(many)[:2] == (indices, indices + 1640 * 512 * 4)


def test_a_recurrent_layers_range_holds_what_a_p100_had() -> None:
    """Workspaces of 17,730,560 and 13,169,920 bytes; of the reserve, only that block's size is in uncertainty."""
    for cell, seen in ((nn.LSTM, 17_730_560), (nn.GRU, 13_169_920)):
        recorder = Recorder(RunningLayer(nn.Module()))
        recorder.begin()
        with FakeTensorMode(), cuda_kernels((6, 0)):
            layer: Any = cell(123, 320, num_layers=4)  # type: ignore[operator]
            x = torch.empty(1000, 25, 123)
            with recorder:
                _outputs = layer(x)
        found = cuda_inner(recorder.trace, P100)
        number, op = next((i, op) for i, op in enumerate(recorder.trace.ops) if op.name == "aten::_cudnn_rnn")
        assert found.low.workspaces[number] <= seen <= found.high.workspaces[number]
        assert found.likely.workspaces[number] == pytest.approx(seen, rel=0.01)
        different = [place for place, size in enumerate(found.likely.sizes) if found.high.sizes[place] != size]
        assert different == [op.made[-1]]
        assert found.low.sizes[op.made[-1]] < found.likely.sizes[op.made[-1]] < found.high.sizes[op.made[-1]]
        assert found.uncertain == {"aten::_cudnn_rnn"}


def test_before_volta_inference_has_no_reserve_but_gates() -> None:
    shapes = [(100, 16, 64), (128, 64), (128, 32), (128,), (128,), (128, 64)]
    gates, weights = 100 * 16 * 128 * 4, 128 * (64 + 32) * 4
    trained = trace_of("aten::_cudnn_rnn", shapes, [100 * 16 * 32 * 4, 2048, 2048, 999], 4)
    predicted = trace_of("aten::_cudnn_rnn", shapes, [100 * 16 * 32 * 4, 2048, 2048, 0], 4)
    assert inside(predicted, P100)[1] - inside(trained, P100)[1] == gates
    assert inside(trained, P100)[1] == pytest.approx(1.46 * weights, rel=1e-3)


def test_other_operators_need_nothing() -> None:
    trace = trace_of("aten::relu", [(8, 64)], [2048], 4)
    found = cuda_inner(trace, A100)
    assert found.low == found.likely == found.high
    assert found.likely.workspaces == [0]
    assert found.likely.sizes == [2048]
    assert found.uncertain == set()


def test_an_h100_held_weights_input_and_one_block_of_cublas() -> None:
    """214,877,184 bytes before an iteration of ViT-B/16 in bf16, batch 4, as a profiler's trace has it."""
    width = 768
    layer = [*[width * width, width] * 4, *[width] * 4, 4 * width * width, 4 * width, 4 * width * width, width]
    weights = [width, 197 * width, width * 3 * 16 * 16, width, *layer * 12, width, width, width * width, width]
    product = AllocationTrace(ops=[Op("aten::addmm", "forward", None)])
    allocator = CachingAllocator()
    for num_bytes in (*(2 * size for size in weights), 4 * 3 * 224 * 224 * 2, *held(product, H100)):
        allocator.allocate(num_bytes)
    assert allocator.allocated_bytes == 214_877_184


@pytest.mark.parametrize(("version", "target", "of_mm", "of_bias"), [
    ("2.10.0", A100, 8_519_680, MIB), ("2.10.0", V100, 8_519_680, MIB), ("2.10.0", H100, 32 * MIB, MIB),
    ("2.10.0", target_like("b200"), 8_519_680, MIB), ("2.11.0", H200, 32 * MIB, MIB),
    ("2.12.0", target_like("b200"), 32 * MIB, 0), ("2.12.0", target_like("rtx5090"), 32 * MIB, 0),
    ("2.12.0", target_like("rtx4090"), 8_519_680, 0),
    ("2.12.0", replace(A100, rocm_architecture="gfx942"), 128 * MIB, 76 * MIB),
])
def test_cublas_keeps_a_block_for_each_thread_that_multiplies(version: str, target: Any, of_mm: int, of_bias: int,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    forward, backward = (Op("aten::mm", phase, None) for phase in ("forward", "backward"))
    none, bias = Op("aten::relu", "backward", None), Op("aten::addmm", "forward", None)
    assert held(AllocationTrace(ops=[none]), target) == []
    assert held(AllocationTrace(ops=[forward, forward, none]), target) == [of_mm]
    assert held(AllocationTrace(ops=[forward, backward]), target) == [of_mm, of_mm]
    assert held(AllocationTrace(ops=[bias]), target) == [of_mm, *([of_bias] if of_bias else [])]


@pytest.mark.parametrize(("rows", "columns", "seen"), [
    (512, 1024, 0), (2048, 1024, 16 * MIB), (4096, 1024, 32 * MIB),  # as in recorded snapshots
    (12608, 4096, 4 * 4096 * 54 * 128),  # as many partial sums as the multiprocessors of an A100 compute at a time
    (10, 1024, 0),
])
def test_the_gradient_of_a_bias_needs_partial_sums(rows: int, columns: int, seen: int) -> None:
    trace = trace_of("aten::sum", [(4, rows // 4, columns)] if rows % 4 == 0 else [(rows, columns)], [columns * 4], 4)
    assert inside(trace) == (seen, seen, seen)


def test_other_sums_need_none() -> None:
    assert inside(trace_of("aten::sum", [(4096, 1024)], [4096 * 4], 4)) == (0, 0, 0)  # over the last dimension
    assert inside(trace_of("aten::sum", [(4096, 1024)], [4], 4)) == (0, 0, 0)


def test_a_gradient_of_indexing_sorts_its_indices() -> None:
    trace = trace_of("aten::index_put_", [(10_000, 1024), (4, 128), (4, 128, 1024)], [], 4, "backward")
    low, likely, high = inside(trace)
    assert low == likely == 5 * 4 * 128 * 8 < high
