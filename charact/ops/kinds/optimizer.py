"""One step of an optimizer over parameters with gradients: SGD with momentum, Adam, AdamW.

PyTorch has three implementations: `single` calls every operator for every tensor, `foreach` every operator for all
tensors at once, `fused` one operator for everything. The functions behind `torch.optim` are called directly. FLOP are
not counted: pointwise work is bound by bytes.

Tolerance: that of a sum of ten terms, the most roundings in a step. Only parameters of the first tensor are compared,
after a step that changes them by about a tenth. On a CPU, fused SGD of 16-bit numbers fails this in PyTorch 2.12 and
2.13, where it does not update most parameters (pytorch/pytorch issue 191763).
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from charact.core.errors import UserError
from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, flattened, sum_tolerance
from charact.ops.parsing import check_elements, malformed, whole_numbers

_NUM_STATES = {"sgd": 1, "adam": 2, "adamw": 2}
_WAYS = ("single", "foreach", "fused")
_CHECKED_ELEMENTS = 2**22
_RATE, _MOMENTUM, _SQUARES, _TINY, _DECAY, _STEPS_BEFORE = 0.1, 0.9, 0.999, 1e-8, 0.01, 10


class _Optimizer(Kind):
    name = "optimizer"
    syntax = "optimizer:sgd|adam|adamw:PARAMETERS[xTENSORS][:single|:foreach|:fused]"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `adamw:7087872x12:fused`: all parameters, in tensors of about equal sizes."""
        rule, _, rest = sizes.partition(":")
        numbers, colon, way = rest.partition(":")
        if rule not in _NUM_STATES or (colon and way not in _WAYS):
            raise malformed(sizes, self.syntax)
        parameters, *more = whole_numbers(numbers, 2 if "x" in numbers else 1, self.syntax)
        tensors = more[0] if more else 1
        if tensors > min(parameters, 10_000):
            raise UserError(f"--problem: '{sizes[:60]}' has {tensors:,} tensors: at most 10,000, and none is empty")
        check_elements(sizes, (parameters,))
        way = way or "single"
        text = f"{self.name}:{rule}:{parameters}" + (f"x{tensors}" if tensors > 1 else "") + f":{way}"
        return Problem(self.name, text, {"rule": rule, "parameters": parameters, "tensors": tensors, "way": way})

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        num_states = _NUM_STATES[str(problem.sizes["rule"])]
        return float(itemsize * int(problem.sizes["parameters"]) * (3 + 2 * num_states))

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        """Return normal random parameters and gradients, and states as after some steps; a call works in place."""
        rule, way = str(problem.sizes["rule"]), str(problem.sizes["way"])
        parameters, tensors = problem.numbers("parameters", "tensors")
        lengths = [parameters // tensors + (number < parameters % tensors) for number in range(tensors)]
        generator = torch.Generator(device).manual_seed(0)

        def normal() -> list[Tensor]:
            return [torch.randn(length, generator=generator, device=device).to(DTYPES[precision]) for length in lengths]

        def inputs() -> list[Tensor]:
            random = [*normal(), *normal(), *normal()]
            if rule == "sgd":
                return random
            squares = [tensor.square_().add_(0.5) for tensor in normal()]
            steps = [torch.tensor(float(_STEPS_BEFORE), device=device if way == "fused" else "cpu") for _ in lengths]
            return [*random, *squares, *steps]

        few = slice(_CHECKED_ELEMENTS)

        def reference(*given: Tensor) -> Tensor:
            groups = [given[first] for first in range(0, len(given), tensors)]
            exact = [tensor[few].double().cpu() for tensor in groups[:2 + _NUM_STATES[rule]]]
            return flattened([_stepped(rule, *exact)])

        return Prepared(inputs, lambda *given: _step(rule, way, tensors, given), reference,
                        lambda result: flattened([result[few]]), sum_tolerance(precision, 10))


def _step(rule: str, way: str, tensors: int, given: tuple[Tensor, ...]) -> Tensor:
    """Run a step in place; returns the first tensor of parameters."""
    groups = [list(given[first:first + tensors]) for first in range(0, len(given), tensors)]
    options: dict[str, Any] = {"foreach": way == "foreach", "fused": way == "fused", "lr": _RATE, "maximize": False}
    if rule == "sgd":
        momenta: list[Tensor | None] = [*groups[2]]
        sgd(groups[0], groups[1], momenta, weight_decay=0.0, momentum=_MOMENTUM, dampening=0.0, nesterov=False,
            **options)
        return given[0]
    options |= {"amsgrad": False, "beta1": _MOMENTUM, "beta2": _SQUARES, "eps": _TINY}
    parameters, gradients, means, squares, steps = groups
    (adam if rule == "adam" else adamw)(parameters, gradients, means, squares, [], steps,
                                        weight_decay=0.0 if rule == "adam" else _DECAY, **options)
    return given[0]


def _stepped(rule: str, parameters: Tensor, gradient: Tensor, first: Tensor, second: Tensor | None = None) -> Tensor:
    """Return the parameters after a step, by the definition.

    *Source*: Kingma and Ba, Adam, algorithm 1; Loshchilov and Hutter, Decoupled Weight Decay Regularization,
    algorithm 2, where PyTorch's decay is a share of the rate.
    """
    if second is None:
        return parameters - _RATE * (_MOMENTUM * first + gradient)
    number = _STEPS_BEFORE + 1
    mean = (_MOMENTUM * first + (1 - _MOMENTUM) * gradient) / (1 - _MOMENTUM**number)
    square = (_SQUARES * second + (1 - _SQUARES) * gradient**2) / (1 - _SQUARES**number)
    decayed = parameters * (1 - _RATE * _DECAY) if rule == "adamw" else parameters
    return decayed - _RATE * mean / (square.sqrt() + _TINY)


KIND = _Optimizer()
