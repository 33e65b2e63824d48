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
reference is the definition, step by step. ReLU's gradient jumps where rounding takes a sum to the other side of 0, and
a single sum is 1 / √(BATCH x STEPS) of a weight's gradient: the reference of gradients takes for each sum the side on
which the layer's own forward pass put it. Results are compared over the first sequences, and in the forward pass the
first steps; gradients by the weights are made of all of them. Gradients are checked in float64 on the device itself: a
CPU would take minutes over a GPU's.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from charact.ops import Kind, Prepared, Problem
from charact.ops.gradients import flattened, gradients, reserve_copy, with_graph
from charact.ops.parsing import check_elements, malformed, whole_numbers
from charact.ops.tolerances import DTYPES, ROUNDING, number_refusal, sum_tolerance

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

    def directions(self, problem: Problem) -> tuple[str, ...]:
        return "forward", "backward_input", "backward_weight"

    def flop(self, problem: Problem, direction: str) -> float:
        """Return the FLOP of the direction."""
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

        reference, compared = _check(problem, direction)
        call: Any = gradients if direction != "forward" else lambda *tensors: _run(cell, *tensors)
        return Prepared(inputs, call, reference, compared, _tolerance(problem, direction, precision),
                        reserve_copy if device.type == "cuda" and direction != "forward" else None)


def _sizes(problem: Problem) -> tuple[int, int, int, int, int]:
    numbers = [int(problem.sizes[name]) for name in ("hidden", "batch", "steps", "input")]
    return _NUM_GATES[str(problem.sizes["cell"])], numbers[0], numbers[1], numbers[2], numbers[3]


def _tolerance(problem: Problem, direction: str, precision: str) -> float:
    _, hidden, _, steps, width = _sizes(problem)
    tolerance = 4 * sum_tolerance(precision, width + hidden)
    if direction == "backward_weight":
        tolerance += ROUNDING[precision] * steps**0.5
    return tolerance


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
    """Return the reference of a direction, and the compared part of its result."""
    cell = str(problem.sizes["cell"])
    gates, hidden, batch, steps, width = _sizes(problem)
    few = slice(_COMPARED_SEQUENCES)
    if direction == "forward":
        num_steps = max(1, _FORWARD_WEIGHTS // (gates * hidden * (hidden + width)))

        def outputs(inputs: Tensor, *rest: Tensor) -> Tensor:
            with torch.no_grad():
                return _defined(cell, *_exact([inputs[:num_steps], *rest], few))[0].cpu()

        return outputs, lambda result: result[:num_steps, few]
    if direction == "backward_input":
        return (lambda result, gradient, *tensors: _by_inputs(cell, result[:, few] > 0, gradient[:, few].double(),
                                                              _exact(tensors, few)),
                lambda result: flattened([part[:, few] for part in result]))
    at_a_time = max(1, _CHUNK_ELEMENTS // (steps * gates * hidden))

    def by_weights(result: Tensor, gradient: Tensor, *tensors: Tensor) -> Tensor:
        found = torch.zeros((), dtype=torch.float64)
        for first in range(0, batch, at_a_time):
            rows = slice(first, first + at_a_time)
            found = found + _by_weights(cell, result[:, rows] > 0, gradient[:, rows].double(), _exact(tensors, rows))
        return found

    return by_weights, lambda result: flattened([result[0][:, _COLUMNS], result[1][:, _COLUMNS], *result[2:]])


def _exact(tensors: Sequence[Tensor], sequences: slice) -> list[Tensor]:
    parts = [*(tensor[:, sequences] for tensor in tensors[:-4]), *tensors[-4:]]
    return [part.detach().double() for part in parts]


def _by_inputs(cell: str, passed: Tensor, gradient: Tensor, tensors: list[Tensor]) -> Tensor:
    leaves = [tensor.requires_grad_() for tensor in tensors[:-4]]
    with torch.enable_grad():
        result, _ = _defined(cell, *tensors, passed=passed)
    return flattened(torch.autograd.grad(result, leaves, gradient))


def _by_weights(cell: str, passed: Tensor, gradient: Tensor, tensors: list[Tensor]) -> Tensor:
    """Return gradients by some columns of both weights, and by both biases, from those by each step's products."""
    with torch.enable_grad():
        result, products = _defined(cell, *tensors, passed=passed)
    found = torch.autograd.grad(result, products, gradient)
    by_input, by_state = torch.stack(found[::2]), torch.stack(found[1::2])
    before = torch.cat([tensors[1], result.detach()[:-1]])
    return flattened([
        torch.einsum("tng,tnc->gc", by_input, tensors[0][..., _COLUMNS]),
        torch.einsum("tng,tnc->gc", by_state, before[..., _COLUMNS]), by_input.sum((0, 1)), by_state.sum((0, 1))])


def _defined(cell: str, inputs: Tensor, *rest: Tensor, passed: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return outputs by the definition, and each step's products by the input and by the state.

    `passed` are the sums that ReLU lets through, (steps, batch, hidden); without it, those above 0.

    *Source*: the formulas in PyTorch's documentation of RNN, LSTM and GRU.
    """
    states, (by_input, by_state, first_bias, second_bias) = [state[0] for state in rest[:-4]], rest[-4:]
    outputs, products = [], []
    for number, step in enumerate(inputs):
        x, h = step @ by_input.t() + first_bias, states[0] @ by_state.t() + second_bias
        if torch.is_grad_enabled():
            products += [tensor if tensor.requires_grad else tensor.requires_grad_() for tensor in (x, h)]
        states = _stepped(cell, x, h, states, None if passed is None else passed[number])
        outputs.append(states[0])
    return torch.stack(outputs), products


def _stepped(cell: str, x: Tensor, h: Tensor, states: list[Tensor], passed: Tensor | None) -> list[Tensor]:
    """Return the cell's states after a time step.

    `x` and `h` are the products of input and state with their weights, plus biases. For a ReLU cell, the mask `passed`
    replaces ReLU: it is true where a sum is passed on.
    """
    if cell == "lstm":
        let_in, keep, new, let_out = (x + h).chunk(4, dim=1)
        state = keep.sigmoid() * states[1] + let_in.sigmoid() * new.tanh()
        return [let_out.sigmoid() * state.tanh(), state]
    if cell == "gru":
        (reset, x_keep, x_new), (h_reset, h_keep, h_new) = x.chunk(3, dim=1), h.chunk(3, dim=1)
        keep = (x_keep + h_keep).sigmoid()
        return [(1 - keep) * (x_new + (reset + h_reset).sigmoid() * h_new).tanh() + keep * states[0]]
    if cell == "tanh":
        return [(x + h).tanh()]
    return [(x + h).relu() if passed is None else (x + h) * passed]


KIND = _Recurrent()
