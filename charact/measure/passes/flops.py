"""FLOP pass: one iteration on fake tensors, without computation, in a fraction of a second at any size."""

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
from charact.record.manifest_passes import FlopPass

NEEDS_FORMULA = {"convolution", "GEMM", "attention", "recurrent"}
"""Operator types with much floating-point work: an operator without a formula is reported."""
_LOOK_UPS = {f"aten::{name}" for name in (
    "embedding", "index_select", "gather", "index", "nll_loss_forward", "nll_loss2d_forward")}
"""Operators that read only some elements of their first tensor."""
_UNTOUCHED = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
"""Operators that allocate memory and neither read nor write it."""


def flop_pass(case: Case, batch: Any) -> tuple[list[dict[str, Any]], FlopPass]:
    """Return rows of the table `flop` for one iteration of a case, and facts about the pass.

    FLOP are counted for convolutions, matrix products, recurrent layers and attention, per dispatched operator, also in
    the backward. The formulas are PyTorch's and those of `flop_formulas`. Bytes are those of every operator's inputs
    and outputs (views: none), the minimum traffic without fusion.

    *Error*: exact for these operators; pointwise work is not counted, as in the published counts. The fact `uncounted`
    names operators with much work but no formula.

    Args:
        case: the case; its model is built again on fake tensors.
        batch: a batch of the case; only its shapes and types are used.
    """
    with fake_tensors(case) as fake:
        # Created anew: a tensor of another device cannot be converted among fake ones.
        fake_batch = tree_map_only(torch.Tensor, lambda one: torch.empty_strided(
            one.size(), one.stride(), dtype=one.dtype), batch)
        loop = fake_loop(case, itertools.repeat(fake_batch), fake)
        if case.training:
            loop.iteration(lambda phase: contextlib.nullcontext())  # the first update also creates state
        counter = _Counter(loop.model)
        with counter:
            loop.iteration(counter.mark)
    return counter.rows(), FlopPass("ok", uncounted=sorted(counter.uncounted))


def work_of(call: Callable[[], Any]) -> tuple[float | None, float, list[str]]:
    """Return the FLOP of a call (null if none are counted), its bytes, and its heavy operators without a formula.

    They are counted as in `flop_pass`; the tensors may be real.
    """
    counter = _Counter(nn.Module())
    with counter:
        call()
    rows = counter.rows()
    counted = [row["flop"] for row in rows if row["flop"] is not None]
    return sum(counted) if counted else None, sum(row["bytes"] for row in rows), sorted(counter.uncounted)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts every operator of the iteration by phase and layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._phase = "data"
        self.uncounted: set[str] = set()
        self._layer = RunningLayer(model)
        self._totals: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, None, 0])

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of the table `flop`."""
        return [
            {"phase": phase, "layer": layer, "operator": operator, "operator_type": operator_type(operator),
             "num_calls": num_calls, "flop": flop, "bytes": float(num_bytes)}
            for (phase, layer, operator), (num_calls, flop, num_bytes) in self._totals.items()
        ]

    @contextlib.contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """Attribute the operators inside to a phase."""
        self._phase = phase
        yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("prim", "profiler"):  # queries of a tensor, annotations: no work
            return func(*args, **kwargs)
        formula = FORMULAS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:
                outputs = func.decompose(*args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        outputs = func(*args, **kwargs)
        operator = f"{func.namespace}::{func._overloadpacket.__name__}"
        if func.is_view or operator_type(operator) == "view":  # such as transpose_, whose is_view is False
            return outputs
        total = self._totals[self._phase, self._layer.name(), operator]
        total[0] += 1
        total[2] += moved_bytes(operator, args, kwargs, outputs)
        if formula is not None:
            total[1] = (total[1] or 0.0) + float(formula(*args, **kwargs, out_val=outputs))
        elif operator_type(operator) in NEEDS_FORMULA:
            self.uncounted.add(operator)
        return outputs


def moved_bytes(operator: str, args: Any, kwargs: Any, outputs: Any) -> int:
    """Return the bytes of a call's inputs and outputs; 0 if it only allocates."""
    return 0 if operator in _UNTOUCHED else _num_bytes(outputs) + _bytes_read(operator, args, kwargs, outputs)


def _bytes_read(operator: str, args: Any, kwargs: Any, outputs: Any) -> int:
    """Return the bytes that an operator reads; of a table only as many as it returns."""
    if operator not in _LOOK_UPS:
        return _num_bytes(args, kwargs)
    return min(_num_bytes(args[:1]), _num_bytes(outputs)) + _num_bytes(args[1:], kwargs)


def _num_bytes(*values: Any) -> int:
    """Return the bytes of the distinct tensors among the values."""
    tensors = {id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}
    return sum(_num_elements(tensor) * tensor.element_size() for tensor in tensors.values())


def _num_elements(tensor: torch.Tensor) -> int:
    """Return the elements in memory; an expanded tensor counts its repeated elements once."""
    if tensor.layout != torch.strided:
        return tensor.numel()
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
