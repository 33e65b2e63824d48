"""Memory of CUDA's libraries in addition to tensors: workspaces of operators, and permanent blocks.

Each rule gives a range of bytes from an operator's shapes; operators without a rule need none. The rules cite their
sources. Those of sums and of `index_put_` agree with recorded CUDA memory snapshots, those of convolutions and
recurrent layers with what an H200 allocated (`benchmarks/README.md`); the others were not checked on a GPU. cuDNN
chooses its algorithms itself, so the range of convolutions without tensor cores is wide. Not modelled: sorting (`topk`,
`unique`), buffers of reductions over whole tensors (a few KiB) and of batch norms in channels-last, and the state of
cuDNN's dropout between recurrent layers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op
from charact.measure.memory_estimate.cuda_kernels import GRU, LSTM, RESERVED_UNITS
from charact.measure.memory_estimate.inner_memory import Inner, Range
from charact.measure.memory_estimate.target_devices import ASSUMED_CAPABILITY, MIB, Target

_CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward"}
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv"}

_CUBLAS_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
_CUBLAS_HOPPER_BYTES = 32 * MIB
_WITH_LARGE_CUBLAS = (("2.14", (9, 10, 11, 12)), ("2.12", (9, 10, 12)), ("0", (9,)))
"""Major compute capabilities with large workspaces from a version of PyTorch on: PRs #189312 and #175344, which were
merged in the months before these releases."""
_CUBLASLT_BYTES = MIB
_FIRST_WITHOUT_OWN_CUBLASLT = "2.12"
"""PyTorch in which cuBLASLt, which adds biases, shares cuBLAS's workspace (PR #168175).

2.11.0 still has a block of its own, measured on an H200.
"""
_HIPBLAS_BYTES, _HIPBLAS_LARGE_BYTES, _HIPBLASLT_BYTES = 32 * MIB, 128 * MIB, 76 * MIB
_WITH_LARGE_HIPBLAS = ("gfx94", "gfx95")
"""Source: pytorch/pytorch, `aten/src/ATen/cuda/CublasHandlePool.cpp` and `CUDABlas.cpp`; the first is the 8,519,680 of
issue #95668."""

_RESERVED_BY_GATES = {4: RESERVED_UNITS[LSTM], 3: RESERVED_UNITS[GRU]}
_TENSOR_CORES = (7, 0)
_TF32 = (8, 0)
_MAX_UNSORTED = 3072
"""Maximum number of indices for which an embedding's gradient needs no sorting (`cuda/Embedding.cu`)."""
_ROWS_A_PARTIAL_SUM = 10
_MULTIPROCESSORS = {(7, 0): (80, 2048), (7, 5): (40, 1024), (8, 0): (108, 2048), (8, 6): (82, 1536),
                    (8, 9): (128, 1536), (9, 0): (132, 2048), (10, 0): (148, 2048), (12, 0): (170, 1536)}
"""Multiprocessors of the largest common device, and threads per multiprocessor, by compute capability."""
_RESERVE_FACTORS = (0.8, 1.0, 1.5)
"""Uncertainty factors of the reserve of cuDNN's recurrent layers, known for one GPU and an old cuDNN."""

Bytes = tuple[float, float, float]
"""Minimum, likely and maximum bytes."""
Blocks = Sequence[int]
"""Bytes of the trace's blocks."""


def cuda_inner(trace: AllocationTrace, target: Target, *, tf32: bool = False, channels_last: bool = False) -> Range:
    """Return operators' workspaces and block sizes on a CUDA device.

    The trace is one recorded under `cuda_kernels`. `channels_last`: whether pictures and weights of convolutions are
    stored in NHWC, which tensor cores read.
    """
    capability = target.capability or ASSUMED_CAPABILITY
    blocks = [block.num_bytes for block in trace.blocks]
    amounts = [_inside(op, blocks, capability, tf32=tf32, channels_last=channels_last) for op in trace.ops]
    uncertain = {op.name for op, (low, _, high) in zip(trace.ops, amounts, strict=True) if low < high}
    scenarios = []
    for place, factor in enumerate(_RESERVE_FACTORS):
        sizes = list(blocks)
        for op in trace.ops:
            if op.name == "aten::_cudnn_rnn":
                reserve = op.made[-1]
                sizes[reserve] = round(factor * blocks[reserve])
        scenarios.append(Inner([round(amount[place]) for amount in amounts], sizes))
    low, likely, high = scenarios
    scarce = [likely.workspaces[number] if op.name in _CONVOLUTIONS else high.workspaces[number]
              for number, op in enumerate(trace.ops)]
    return Range(low, likely, high, uncertain, Inner(scarce, high.sizes))


def held(trace: AllocationTrace, target: Target) -> list[int]:
    """Return bytes of the permanent workspaces of cuBLAS (ROCm: hipBLAS), one for each thread that calls it.

    The backward pass runs in a separate thread. Products with biases may have another workspace, of cuBLASLt.
    """
    num_threads = len({op.phase == "backward" for op in trace.ops if op.name in _PRODUCTS})
    num_with_biases = len({op.phase == "backward" for op in trace.ops if op.name == "aten::addmm"})
    if target.rocm_architecture is not None:
        large = target.rocm_architecture.startswith(_WITH_LARGE_HIPBLAS)
        return [_HIPBLAS_LARGE_BYTES if large else _HIPBLAS_BYTES] * num_threads + [_HIPBLASLT_BYTES] * num_with_biases
    majors = next(majors for since, majors in _WITH_LARGE_CUBLAS if torch.__version__ >= since)
    large = (target.capability or ASSUMED_CAPABILITY)[0] in majors
    own = torch.__version__ < _FIRST_WITHOUT_OWN_CUBLASLT
    return ([_CUBLAS_HOPPER_BYTES if large else _CUBLAS_BYTES] * num_threads
            + [_CUBLASLT_BYTES] * (num_with_biases if own else 0))


def _inside(op: Op, blocks: Blocks, capability: tuple[int, int], *, tf32: bool, channels_last: bool) -> Bytes:
    if op.name in _CONVOLUTIONS:
        fast = capability >= _TENSOR_CORES if op.item_bytes == 2 else tf32 and capability >= _TF32
        convolution = _Convolution.of(op, blocks)
        return convolution.on_tensor_cores(channels_last=channels_last) if fast else convolution.without_tensor_cores()
    if op.name in ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"):
        return _recurrent(op, blocks) if capability >= _TENSOR_CORES else _recurrent_before_volta(op, blocks)
    if op.name == "aten::sum" and op.made:
        amount = _sum(op, blocks, *_MULTIPROCESSORS.get(capability, _MULTIPROCESSORS[ASSUMED_CAPABILITY]))
        return amount, amount, amount
    rule = _RULES.get(op.name)
    return rule(op, blocks) if rule else (0, 0, 0)


@dataclass(frozen=True)
class _Convolution:
    """A convolution, or its gradients by inputs and by weights, of which the one with the larger workspace counts.

    Source of all rules without another: 524 convolutions of VGG-11, ResNet-18, ResNet-50 and GoogLeNet on an H200 with
    cuDNN 9.19. Two of them allocated 1 and 2 % more than the range's upper bound, the others were within the range.
    """

    inputs: tuple[int, ...]
    weight: tuple[int, ...]
    out_bytes: float
    item_bytes: int
    strides_one: bool
    is_backward: bool

    @classmethod
    def of(cls, op: Op, blocks: Blocks) -> "_Convolution":
        is_backward = op.name == "aten::convolution_backward"
        inputs, weight = op.input_shapes[1:3] if is_backward else op.input_shapes[:2]
        out_bytes = math.prod(op.input_shapes[0]) * op.item_bytes if is_backward else blocks[op.made[0]]
        # Each side of the output is smaller by its kernel at the most, unless it strides.
        positions = math.prod(max(1, side - kernel + 1) for side, kernel in zip(inputs[2:], weight[2:], strict=True))
        num_outputs = out_bytes / (op.item_bytes * inputs[0] * weight[0])
        return cls(inputs, weight, out_bytes, op.item_bytes, num_outputs >= max(1, positions), is_backward)

    @property
    def _weight_bytes(self) -> int:
        return math.prod(self.weight) * self.item_bytes

    @property
    def _is_pointwise(self) -> bool:
        return math.prod(self.weight[2:]) == 1

    @property
    def _partial_sums(self) -> int:
        """Return bytes of weight gradients in fp32 that groups of multiprocessors sum apart."""
        return min(64 * 4 * math.prod(self.weight), 33 * MIB) if self.is_backward else 0

    def on_tensor_cores(self, *, channels_last: bool) -> Bytes:
        """Return the bytes of copies to NHWC with channels in multiples of 8 (TF32: 4), which tensor cores read.

        Without strides two kinds read NCHW in place: pointwise ones whose channels need no filling up and whose
        pictures have a multiple of 4 positions, and the forward of a 3×3 kernel over up to 3 channels. In channels-last
        only tensors whose channels must be filled up are copied.

        Source: also an H100, on which the first convolution of ViT-B/16 in bf16 allocated 7,561,728 bytes at batch 4,
        512 more than these copies, and 0.2 % more at batch 128; a transposed one on a V100, which allocated 1.5 times
        as much (pytorch issue #31500).
        """
        multiple = 16 // self.item_bytes
        in_copy, weight_copy = (math.prod((shape[0], _up(shape[1], multiple), *shape[2:])) * self.item_bytes
                                for shape in (self.inputs, self.weight))  # with padded channels
        out_copy = self.out_bytes * _up(self.weight[0], multiple) / self.weight[0]
        copies = in_copy + weight_copy + out_copy
        if channels_last:
            filled = (in_copy if self.inputs[1] % multiple else 0) + (out_copy if self.weight[0] % multiple else 0)
            return 0, filled, copies + self._partial_sums + MIB
        if self._is_pointwise:
            in_place = math.prod(self.inputs[2:]) % 4 == self.inputs[1] % multiple == self.weight[0] % multiple == 0
        else:
            in_place = not self.is_backward and self.inputs[1] < 4 and self.weight[2:] == (3, 3)
        return 0, 0 if in_place and self.strides_one else copies, 1.5 * copies + self._partial_sums + MIB

    def without_tensor_cores(self) -> Bytes:
        """Return the least, likely and largest bytes of Winograd's or Fourier's transforms, and of copies.

        Pointwise and strided convolutions take copies.

        Winograd's is likely for weight gradients of 3×3 kernels over more than 4 channels. No rule was found
        for Fourier's: of 51 convolutions with 3×3 kernels and without strides, 7 forwards and 14 input gradients
        took it. Where memory is too small for a transform, PyTorch takes another algorithm.

        Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", F(4×4, 3×3), which transforms a
        tile of 16 elements, and a kernel's 9, to 36; sizes of Fourier transforms were found from those measured.
        """
        both, partial = math.prod(self.inputs) * self.item_bytes + self.out_bytes, self._partial_sums
        if self._is_pointwise:
            return 0, 0, both + self._weight_bytes + partial
        if not self.strides_one or len(self.inputs) != 4:
            return 0, 0, 2.25 * both + 4 * self._weight_bytes
        filled = math.prod(_up(side, 4) / side for side in self.inputs[2:])
        winograd = 2.25 * filled * both + 4 * self._weight_bytes
        takes_winograd = self.is_backward and self.weight[2:] == (3, 3) and self.inputs[1] > 4
        return 0, winograd if takes_winograd else 0, max(winograd, self._fourier())

    def _fourier(self) -> float:
        """Return the bytes of transforms of inputs, kernels and outputs.

        A forward transforms whole pictures of up to 64×64, with the kernel's margin, gradients tiles of 32×32.
        """
        count, channels, *sides = self.inputs
        kernels, reach = self.weight[0], max(sides) + max(self.weight[2:]) - 1
        if self.is_backward:
            tiles = channels * kernels + count * (channels + kernels) * (1 if reach <= 32 else 2)
            return float(tiles * 32 * 17 * 8)
        side = next((side for side in (16, 32, 64) if side >= reach), 0)
        transforms = 2 * channels * kernels + 2 * count * max(channels, kernels)
        return float(transforms * side * (side // 2 + 1) * 8 + self._weight_bytes)


def _sum(op: Op, blocks: Blocks, multiprocessors: int, threads: int) -> float:
    """Return partial sums over the leading dimensions, as for the gradient of a bias.

    Source: `setReduceConfig` and `global_memory_size` in `aten/src/ATen/native/cuda/Reduce.cuh`. Blocks of 32 threads,
    each with up to 4 outputs, share an output's inputs, if a thread would add 256 or more. A sum over the last
    dimension needs one partial sum per block instead, which is too little to count.
    """
    shape, out_bytes = op.input_shapes[0], blocks[op.made[0]]
    # The outputs may be wider than the inputs.
    leading = next((place for place in range(1, len(shape))
                    if out_bytes in (math.prod(shape[place:]) * op.item_bytes, math.prod(shape[place:]) * 4)), None)
    if leading is None or not out_bytes:
        return 0
    num_inputs, num_outputs = math.prod(shape[:leading]), math.prod(shape[leading:])
    vector = math.gcd(shape[-1], 4)
    max_threads = 512 // vector
    columns, rows = (min(1 << number.bit_length() - 1, max_threads)  # the largest power of two that is not larger
                     for number in (num_outputs // vector, num_inputs))
    height = min(rows, max_threads // min(columns, 32))
    width = min(columns, max_threads // height)
    values = -(-num_inputs // height)
    grid = -(-num_outputs // (vector * width))
    target = multiprocessors * (threads // (width * height))
    if num_inputs < min(16 * height, 256) or values < 256 or grid > target:
        return 0
    splits = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    return 4.0 * num_outputs * splits * width * vector if splits > 1 else 0


def _index_put(op: Op, blocks: Blocks) -> Bytes:
    """Return sorted indices of an accumulation: `index_put_with_sort_kernel` in `cuda/Indexing.cu`.

    Five buffers of int64 for each index, and CUB's, of which the size is a guess for many indices.
    """
    num_indices = math.prod(op.input_shapes[1]) if len(op.input_shapes) > 1 else 0
    amount = 40 * num_indices if op.phase == "backward" else 0
    return amount, amount, 2 * amount


def _flash_backward(op: Op, blocks: Blocks) -> Bytes:
    """Return the query's fp32 gradient and one value per query; with fewer heads of keys, also all heads' gradients.

    Source: `transformers/cuda/flash_attn/flash_api.cpp` (`dq_accum`, `softmax_d`, `dk_expanded`, `dv_expanded`).
    """
    (count, heads, queries, width), (_, key_heads, keys, _) = op.input_shapes[1:3]
    amount = 4.0 * count * heads * _up(queries, 128) * (_up(width, 32) + 1)
    if key_heads != heads:
        amount += 2 * op.item_bytes * count * heads * keys * width
    return amount, amount, amount


def _cudnn_attention_backward(op: Op, blocks: Blocks) -> Bytes:
    """Return an undocumented workspace, assumed to equal flash's."""
    amount, *_ = _flash_backward(op, blocks)
    return 0, amount, 2 * amount


def _efficient_backward(op: Op, blocks: Blocks) -> Bytes:
    """Return gradients in fp32, in tiles whose sizes depend on the device; in half precision also of key and value.

    Source: `transformers/cuda/mem_eff_attention/kernel_backward.h`.
    """
    count, heads, queries, width = op.input_shapes[1]
    keys = op.input_shapes[2][2]
    low = 4.0 * count * heads * queries * (width + 1)
    likely = 4.0 * count * heads * _up(queries, 64) * (width + 1)
    high = 4.0 * count * heads * _up(queries, 128) * (_up(width, 64) + 1)
    return low, likely, high + (8 * count * heads * keys * _up(width, 64) if op.item_bytes == 2 else 0)


def _embedding_backward(op: Op, blocks: Blocks) -> Bytes:
    """Return sorted indices, and fp32 sums over ten rows each: `cuda/EmbeddingBackwardKernel.cu`.

    The minimum applies if few distinct indices occur; CUB's buffer is a guess.
    """
    width, num_indices = op.input_shapes[0][-1], math.prod(op.input_shapes[1])
    if num_indices <= _MAX_UNSORTED:
        return 0, 0, 0
    num_rows = blocks[op.made[0]] // (op.item_bytes * width)
    num_segments = min(num_indices, num_rows)
    num_sums = num_indices // _ROWS_A_PARTIAL_SUM + num_segments
    indices = 8 * (3 * num_indices + 2 * num_segments + num_sums)
    sums = 4 * _up(width, 32)
    return indices, indices + num_sums * sums, 1.5 * indices + num_sums * sums


def _recurrent(op: Op, blocks: Blocks) -> Bytes:
    """Return 8 MiB a layer and direction, the weights, and 6.3 times the outputs (7.6 times in two directions).

    In inference and in the backward pass they also hold as much as the reserve, which training keeps in between.

    Source: 24 LSTMs and GRUs on an H200 with cuDNN 9.19, of which 20 allocated this within 10 %; the others, of 128
    units in three layers, allocated 0.9 to 1.7 times as much.
    """
    weights = _weights_bytes(op)
    inputs, states = op.input_shapes[0], next(shape for shape in op.input_shapes[1:] if len(shape) == 3)
    num_steps, hidden = math.prod(inputs[:2]), states[-1]
    if op.name.endswith("backward"):
        width = [shape[-1] for shape in op.input_shapes if len(shape) == 3 and shape[:2] == inputs[:2]][-1]
    else:
        width = blocks[op.made[0]] // (op.item_bytes * num_steps)
    output_bytes = op.item_bytes * num_steps * width
    num_layers = max(1, states[0] * hidden // width)
    likely = 8 * MIB * states[0] + weights + (6.3 if width == hidden else 7.6) * output_bytes
    if op.name.endswith("backward") or not blocks[op.made[-1]]:
        num_gates = op.input_shapes[1][0] // hidden
        likely += output_bytes * (_RESERVED_BY_GATES.get(num_gates, 1) * num_layers + num_layers - 1)
    return 0, likely, 2 * likely


def _recurrent_before_volta(op: Op, blocks: Blocks) -> Bytes:
    """Return an undocumented workspace: 1.46 times the weights in training on a P100 (pytorch/pytorch issue #2895).

    In inference, without a reserve, it may also hold the gates of every step.
    """
    weights = _weights_bytes(op)
    gates = op.item_bytes * math.prod(op.input_shapes[0][:2]) * op.input_shapes[2][0]
    trains = op.name.endswith("backward") or blocks[op.made[-1]] > 0
    likely = 1.46 * weights + (0 if trains else gates)
    return 0, likely, 2 * likely + 2 * gates


def _weights_bytes(op: Op) -> int:
    matrices = [math.prod(shape) for shape in op.input_shapes[1:] if len(shape) == 2]
    return op.item_bytes * (sum(matrices) - matrices[0])  # the first is both a weight and the buffer


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


_RULES: dict[str, Callable[[Op, Blocks], Bytes]] = {
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index_put_": _index_put,
}
"""Rules by operator; those of convolutions and recurrent layers also depend on the device."""
