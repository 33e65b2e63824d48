"""Recurrent layers: one layer, in one direction, over sequences of equal lengths.

DeepBench runs cuDNN with SKIP_INPUT, which adds the input to the gates without a product. PyTorch has no such mode:
here the product by the input is run and counted, for an input as wide as the hidden state unless INPUT is given.
DeepBench's own count is reported, too.

A forward pass keeps nothing for a backward pass. FLOP are those that a direction needs: forward two products a step,
by the input and by the state; the gradients by the input and the first state as many; the gradients by the weights as
many again, and before them the state's, which they are made of, at every step but the first. cuDNN and oneDNN compute
the gradients by the input along with those by the weights, which is not counted.

Tolerance: that of the sums in a gate, times 4, since a step's errors add to those of the steps before, which fade.
Gradients by the weights are sums over the steps, which some libraries round at each: that grows as their root. The
reference is PyTorch's own layer in float64, without cuDNN and oneDNN. ReLU's gradient jumps where rounding takes a sum
to the other side of 0, and a single sum is 1 / √(BATCH x STEPS) of a weight's gradient: the reference of gradients
takes for each sum the side on which the layer's own forward pass put it. Results are compared over the first sequences,
and in the forward pass the first steps; gradients by the weights are made of all of them. References are computed on
the device itself: a CPU would take minutes over a GPU's.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from charact.ops import DIRECTIONS, Kind, Prepared, Problem
from charact.ops.numerics import (
    DTYPES,
    ROUNDING,
    flattened,
    gradients,
    number_refusal,
    reserve_copy,
    sum_tolerance,
    with_graph,
)
from charact.ops.parsing import check_elements, malformed, whole_numbers

_NUM_GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}
_CALLS = {"relu": torch.rnn_relu, "tanh": torch.rnn_tanh, "lstm": torch.lstm, "gru": torch.gru}
_COMPARED_SEQUENCES = 4
_FORWARD_WEIGHTS = 2**31
"""Weights that the forward reference may read, over all steps: some seconds."""
_COLUMNS = slice(64)
"""Columns of the weights whose gradients are compared."""
_CHUNK_ELEMENTS = 2**26
"""Gates of the sequences in a block of the reference by the weights: autograd stores some ten times as many."""


class _Recurrent(Kind):
    name = "rnn"
    syntax = "rnn:relu|tanh|lstm|gru:HIDDENxBATCHxSTEPS[xINPUT]"
    directions = DIRECTIONS

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `lstm:512x16x25`."""
        cell, _, numbers = sizes.partition(":")
        if cell not in _NUM_GATES:
            raise malformed(sizes, self.syntax)
        hidden, batch, steps, *rest = whole_numbers(numbers, 4 if numbers.count("x") == 3 else 3, self.syntax)
        width = rest[0] if rest else hidden
        check_elements(sizes, (_NUM_GATES[cell], hidden, hidden + width), (steps, batch, hidden + width))
        text = f"{self.name}:{cell}:{hidden}x{batch}x{steps}" + (f"x{width}" if width != hidden else "")
        return Problem(self.name, text, {"cell": cell, "hidden": hidden, "batch": batch, "steps": steps,
                                         "input": width})

    def flop(self, problem: Problem, direction: str) -> float:
        gates, hidden, batch, steps, width = _sizes(problem)
        widths = steps * (width + hidden)
        if direction == "backward_weight":
            widths += (steps - 1) * hidden
        return 2.0 * gates * hidden * batch * widths

    def published_flop(self, problem: Problem, direction: str) -> tuple[float, str] | None:
        """Return DeepBench's count, the same in each direction.

        *Source*: DeepBench, code/nvidia/rnn_bench.cu, and its sheets of results, which add the sum by the state in
        vanilla layers: with it their TFLOP/s follow from their times.
        """
        if problem.suite is None:
            return None
        gates, hidden, batch, steps, _ = _sizes(problem)
        flop = 2.0 * gates * hidden**2 * batch * steps
        if gates == 1:
            return flop + hidden * batch * steps, "DeepBench: state's product only, and 1 FLOP more a state"
        return flop, "DeepBench: state's product only"

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of weights (once), input, output, first and last states, and gradients of each."""
        gates, hidden, batch, steps, width = _sizes(problem)
        weights = gates * hidden * (width + hidden + 2)
        states = (2 if problem.sizes["cell"] == "lstm" else 1) * batch * hidden
        inputs, outputs = steps * batch * width, steps * batch * hidden
        if direction == "forward":
            return float(itemsize * (weights + inputs + outputs + 2 * states))
        read = weights + inputs + states + 2 * outputs  # the output and the gradient by it
        written = inputs + states if direction == "backward_input" else weights
        return float(itemsize * (read + written))

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        return number_refusal(precision, device, int8="PyTorch has no recurrent layer of int8 numbers that is not "
                                                      "calibrated by a model: use --operations gemm for int8")

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        """Return weights as PyTorch draws them, uniform within 1 / √HIDDEN; inputs and first states are normal."""
        cell = str(problem.sizes["cell"])
        _, hidden, batch, steps, width = _sizes(problem)
        generator = torch.Generator(device).manual_seed(0)
        dtype = DTYPES[precision]

        def normal(*shape: int) -> Tensor:
            numbers = torch.randn(shape, generator=generator, device=device).to(dtype)
            return numbers.requires_grad_(direction == "backward_input")

        def inputs() -> list[Tensor]:
            states = [normal(1, batch, hidden) for _ in range(2 if cell == "lstm" else 1)]
            weights = _weights(cell, width, hidden, dtype, device)
            with torch.no_grad():
                for weight in weights:
                    bound = hidden**-0.5
                    weight.uniform_(-bound, bound, generator=generator)
            for weight in weights:
                weight.requires_grad_(direction == "backward_weight")
            tensors = [normal(steps, batch, width), *states, *weights]
            if direction == "forward":
                return tensors
            return with_graph(lambda *them: _run(cell, *them, train=True), tensors, generator)

        tolerance = 4 * sum_tolerance(precision, width + hidden)
        if direction == "backward_weight":
            tolerance += ROUNDING[precision] * steps**0.5
        call: Any = gradients if direction != "forward" else lambda *tensors: _run(cell, *tensors)
        return Prepared(inputs, call, *_check(problem, direction), tolerance,
                        reserve_copy if device.type == "cuda" and direction != "forward" else None)


def _sizes(problem: Problem) -> tuple[int, int, int, int, int]:
    hidden, batch, steps, width = problem.numbers("hidden", "batch", "steps", "input")
    return _NUM_GATES[str(problem.sizes["cell"])], hidden, batch, steps, width


def _weights(cell: str, width: int, hidden: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Return uninitialized weights and biases in one block, as cuDNN requires, which would copy others at each call.

    PyTorch's modules arrange theirs so except in bfloat16.
    """
    rows = _NUM_GATES[cell] * hidden
    shapes = (rows, width), (rows, hidden), (rows,), (rows,)
    block = torch.empty(sum(map(math.prod, shapes)), dtype=dtype, device=device)
    parts = torch.split(block, [math.prod(shape) for shape in shapes])
    return [part.view(shape).detach() for part, shape in zip(parts, shapes, strict=True)]


def _run(cell: str, inputs: Tensor, *rest: Tensor, train: bool = False) -> Tensor:
    states, weights = rest[:-4], rest[-4:]
    first: Any = states if cell == "lstm" else states[0]
    call: Any = _CALLS[cell]
    outputs: Tensor = call(inputs, first, weights, True, 1, 0.0, train, False, False)[0]
    return outputs


def _check(problem: Problem, direction: str) -> tuple[Any, Any]:
    cell = str(problem.sizes["cell"])
    gates, hidden, batch, steps, width = _sizes(problem)
    few = slice(_COMPARED_SEQUENCES)

    def exact(tensors: Sequence[Tensor], sequences: slice) -> list[Tensor]:
        parts = [*(tensor[:, sequences] for tensor in tensors[:-4]), *tensors[-4:]]
        return [part.detach().double().requires_grad_(tensor.requires_grad)
                for part, tensor in zip(parts, tensors, strict=True)]

    def exact_gradients(sequences: slice, result: Tensor, gradient: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        parts = exact(tensors, sequences)
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            outputs = (_masked_relu(result[:, sequences] > 0, *parts) if cell == "relu"
                       else _run(cell, *parts, train=True))
            return gradients(outputs, gradient[:, sequences].double(), *parts)

    if direction == "forward":
        num_steps = max(1, _FORWARD_WEIGHTS // (gates * hidden * (hidden + width)))

        def outputs(inputs: Tensor, *rest: Tensor) -> Tensor:
            with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
                return _run(cell, *exact([inputs[:num_steps], *rest], few)).cpu()

        return outputs, lambda result: result[:num_steps, few]
    if direction == "backward_input":
        return (lambda *tensors: flattened(exact_gradients(few, *tensors)),
                lambda result: flattened([part[:, few] for part in result]))
    at_a_time = max(1, _CHUNK_ELEMENTS // (steps * gates * hidden))

    def compared(result: Sequence[Tensor]) -> Tensor:
        return flattened([result[0][:, _COLUMNS], result[1][:, _COLUMNS], *result[2:]])

    def by_weights(*tensors: Tensor) -> Tensor:
        chunks = [compared(exact_gradients(slice(first, first + at_a_time), *tensors))
                  for first in range(0, batch, at_a_time)]
        return torch.stack(chunks).sum(0)

    return by_weights, compared


def _masked_relu(passed: Tensor, inputs: Tensor, states: Tensor, by_input: Tensor, by_state: Tensor,
                 first_bias: Tensor, second_bias: Tensor) -> Tensor:
    """Return the outputs of a ReLU layer in which the mask `passed` (steps, batch, hidden) decides which sums pass."""
    outputs = [states[0]]
    for step, mask in zip(inputs, passed, strict=True):
        outputs.append((step @ by_input.t() + first_bias + outputs[-1] @ by_state.t() + second_bias) * mask)
    return torch.stack(outputs[1:])


KIND = _Recurrent()
