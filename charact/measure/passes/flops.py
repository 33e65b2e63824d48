"""The FLOP pass: one iteration on fake tensors. Nothing is computed, so it costs a fraction of a second at any size."""

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from charact.core.operator_types import operator_type
from charact.execution.case import Case
from charact.execution.fake_tensors import fake_loop, fake_tensors
from charact.execution.running_layer import RunningLayer
from charact.measure.passes.flop_formulas import FORMULAS

_NEEDS_FORMULA = {"convolution", "GEMM", "attention", "recurrent"}
"""Operator types that do floating-point work by the million: one without a formula is named, not left out quietly."""
_LOOK_UPS = {f"aten::{name}" for name in (
    "embedding", "index_select", "gather", "index", "nll_loss_forward", "nll_loss2d_forward")}
"""Operators that read some places of their first tensor, and leave the rest alone."""
_UNTOUCHED = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
"""Operators that take memory and neither read nor write it."""


def flop_pass(case: Case, batch: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the table `flop` for one iteration of a case, and facts about the pass.

    FLOP are those of convolutions, matrix products, recurrent layers and attention by PyTorch's formulas and those of
    `flop_formulas`, dispatched operator by dispatched operator, in the backward pass too; bytes are those of every
    operator's inputs and outputs (views cost none), which is the least traffic that it could cause without fusion.

    *Error*: exact for these operators; pointwise work is left out, as in the published counts. Heavy operators that
    have no formula are named in the fact `uncounted`.

    Args:
        case: the case; its model is built anew on fake tensors.
        batch: a batch of the case: only its shapes and types are used.
    """
    with fake_tensors(case) as fake:
        fake_batch = tree_map_only(torch.Tensor, lambda tensor: fake.from_tensor(tensor.cpu()), batch)
        loop = fake_loop(case, itertools.repeat(fake_batch), fake)
        if case.training:
            loop.iteration(lambda phase: contextlib.nullcontext())  # the first update is another: it makes its state
        counter = _Counter(loop.model)
        with counter:
            loop.iteration(counter.mark)
    return counter.rows(), {"uncounted": sorted(counter.uncounted)}


def work_of(call: Callable[[], Any]) -> tuple[float | None, float, list[str]]:
    """FLOP of what a call dispatches (null where none are counted), its bytes, and heavy operators without a formula.

    They are counted as in `flop_pass`; the tensors may be real ones.
    """
    counter = _Counter(nn.Module())
    with counter:
        call()
    rows = counter.rows()
    counted = [row["flop"] for row in rows if row["flop"] is not None]
    return sum(counted) if counted else None, sum(row["bytes"] for row in rows), sorted(counter.uncounted)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every dispatched operator of the iteration, with the phase and layer that it belongs to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._phase = "data"
        self.uncounted: set[str] = set()
        self._layer = RunningLayer(model)
        self._totals: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, None, 0])

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table `flop`."""
        return [
            {"phase": phase, "layer": layer, "operator": operator, "operator_type": operator_type(operator),
             "num_calls": num_calls, "flop": flop, "bytes": float(num_bytes)}
            for (phase, layer, operator), (num_calls, flop, num_bytes) in self._totals.items()
        ]

    @contextlib.contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """Count what is dispatched inside as the phase's."""
        self._phase = phase
        yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("prim", "profiler"):  # questions about a tensor, marks: no work
            return func(*args, **kwargs)
        formula = FORMULAS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:
                outputs = func.decompose(*args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        outputs = func(*args, **kwargs)
        operator = f"{func.namespace}::{func._overloadpacket.__name__}"
        if func.is_view or operator_type(operator) == "view":  # such as transpose_, which says that it is none
            return outputs
        total = self._totals[self._phase, self._layer.name(), operator]
        total[0] += 1
        if operator not in _UNTOUCHED:
            total[2] += _num_bytes(outputs) + _bytes_read(operator, args, kwargs, outputs)
        if formula is not None:
            total[1] = (total[1] or 0.0) + float(formula(*args, **kwargs, out_val=outputs))
        elif operator_type(operator) in _NEEDS_FORMULA:
            self.uncounted.add(operator)
        return outputs


def _bytes_read(operator: str, args: Any, kwargs: Any, outputs: Any) -> int:
    """Bytes of what an operator reads: its tensors, and of a table no more than comes out of it."""
    if operator not in _LOOK_UPS:
        return _num_bytes(args, kwargs)
    return min(_num_bytes(args[:1]), _num_bytes(outputs)) + _num_bytes(args[1:], kwargs)


def _num_bytes(*values: Any) -> int:
    """Bytes of the distinct tensors among the values."""
    tensors = {id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}
    return sum(_num_elements(tensor) * tensor.element_size() for tensor in tensors.values())


def _num_elements(tensor: torch.Tensor) -> int:
    """Elements that lie in memory: of a tensor that was expanded those that it repeats."""
    if tensor.layout != torch.strided:
        return tensor.numel()
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
