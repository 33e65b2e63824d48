"""Whether the modelled range of operators' internal memory holds: random layers, forward and backward, run alone.

Run `python benchmarks/operator_memory.py [--layers 1000] [--seed 1] [--dtype bfloat16]`. An operator is modelled only
if it cannot run alone; the upper end of its range also decides which operators need not run. Other instruction sets:
set ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY. Layers that PyTorch itself cannot run are skipped.
"""

import argparse
import random
import sys
from typing import Any

import torch
from torch import nn

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder
from charact.measure.memory_estimate.inner_memory import modelled
from charact.measure.memory_estimate.operator_memory import OperatorMemory

IMAGES = {1: (32, 100, 500), 2: (7, 8, 14, 15, 28, 33, 56), 3: (5, 8, 12)}
"""Sizes by number of dimensions."""
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def random_layer(choose: random.Random) -> tuple[nn.Module, torch.Tensor]:
    """A layer and its input."""
    kind = choose.choice(("convolution",) * 6 + ("recurrent", "pool", "norm", "embedding", "softmax", "attention"))
    batch = choose.choice((1, 2, 3, 8, 16))
    if kind == "convolution":
        return random_convolution(choose, batch)
    if kind == "recurrent":
        make = choose.choice((nn.LSTM, nn.GRU, nn.RNN))
        width, hidden = choose.choice((8, 33, 64, 200)), choose.choice((8, 33, 64, 200))
        return (make(width, hidden, choose.choice((1, 2)), bidirectional=choose.random() < 0.3),
                torch.zeros(choose.choice((1, 7, 35)), batch, width))
    if kind == "pool":
        return choose.choice((nn.MaxPool2d(3, 2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3),
                              nn.Upsample(scale_factor=2, mode="bilinear"))), torch.zeros(batch, 16, 14, 14)
    if kind == "norm":
        norm = choose.choice((nn.BatchNorm2d(16), nn.GroupNorm(4, 16), nn.LayerNorm(14)))
        return norm, torch.zeros(batch, 16, 14, 14)
    if kind == "embedding":
        return (nn.Embedding(choose.choice((10, 1000)), choose.choice((8, 65))),
                torch.zeros(batch, 20, dtype=torch.long))
    if kind == "softmax":
        return nn.Softmax(choose.choice((0, 1, 2))), torch.zeros(batch, 50, choose.choice((16, 100)))
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), torch.zeros(batch, choose.choice((16, 100)), 64)


def random_convolution(choose: random.Random, batch: int) -> tuple[nn.Module, torch.Tensor]:
    """A plain, grouped, depthwise, dilated or transposed convolution of 1 to 3 dimensions."""
    dimensions, groups = choose.choice((1, 2, 2, 2, 3)), choose.choice((1, 1, 1, 2, 4))
    inputs, outputs = (groups * choose.choice((1, 3, 4, 8, 10, 16, 24, 32, 64)) for _ in range(2))
    kernel = choose.choice((1, 2, 3, 5, 7))
    if choose.random() < 0.2:
        groups, outputs = inputs, inputs * choose.choice((1, 2))
    dilation = choose.choice((1, 1, 1, 2, 3))
    options: dict[str, Any] = {"stride": choose.choice((1, 1, 2, 3, 4)), "padding": kernel // 2, "groups": groups,
                               "bias": choose.random() < 0.5}
    x = torch.zeros(batch, inputs, *[choose.choice(IMAGES[dimensions])] * dimensions)
    if dimensions == 2 and choose.random() < 0.2:
        x = x.to(memory_format=torch.channels_last)
    if dimensions == 2 and choose.random() < 0.15:
        return nn.ConvTranspose2d(inputs, outputs, kernel, **options), x
    return CONVOLUTIONS[dimensions](inputs, outputs, kernel, dilation=dilation, **options), x


def trace_of(layer: nn.Module, x: torch.Tensor) -> AllocationTrace:
    """The operators of the layer's forward and backward pass."""
    recorder = Recorder(RunningLayer(layer))
    recorder.begin()
    with recorder:
        outputs = layer(x.requires_grad_() if x.is_floating_point() else x)
        (outputs[0] if isinstance(outputs, tuple) else outputs).sum().backward()
    return recorder.ended()


def main() -> None:
    """Compare measured amounts with the ends of the range; print those outside and the closest by operator."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    choose, dtype, memory = random.Random(arguments.seed), getattr(torch, arguments.dtype), OperatorMemory()
    closest: dict[str, float] = {}
    num_calls = num_outside = 0
    for _ in range(arguments.layers):
        layer, x = random_layer(choose)
        try:
            trace = trace_of(layer.to(dtype), x.to(dtype) if x.is_floating_point() else x)
        except RuntimeError as error:
            print(f"skipped {layer}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
            continue
        sizes, ops = [block.num_bytes for block in trace.blocks], {op.call: op for op in trace.ops if op.call}
        memory.measure(list(ops), lambda _: 0)
        for call, found in memory.cached(ops).items():
            high = modelled(ops[call], sizes).high
            inside = found.peak_bytes - sum(sizes[number] for number in ops[call].made)
            closest[ops[call].name] = max(closest.get(ops[call].name, 0), inside / high)
            num_calls, num_outside = num_calls + 1, num_outside + (inside > high)
            if inside > high:
                print(f"outside: {inside:,} bytes, at most {high:,.0f} expected: {call.text}")
    print(f"{num_calls} calls, {num_outside} outside of the range; largest share of its upper end by operator:")
    for name, share in sorted(closest.items(), key=lambda item: -item[1]):
        print(f"  {name}: {share:.2f}")


if __name__ == "__main__":
    main()
