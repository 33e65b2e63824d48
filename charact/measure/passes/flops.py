"""FLOP pass: one iteration on fake tensors, without computation, in a fraction of a second at any size."""

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from charact.core.operator_types import operator_type
from charact.execution.case import Case
from charact.execution.fake_tensors import fake_loop, fake_tensors
from charact.execution.running_layer import RunningLayer
from charact.measure.passes.memory_pass import dense_parts
from charact.record.manifest_passes import FlopPass

NEEDS_FORMULA = {"convolution", "GEMM", "attention", "recurrent"}
"""Operator types with much floating-point work: an operator without a formula is reported."""
_LOOK_UPS = {f"aten::{name}" for name in (
    "embedding", "index_select", "gather", "index", "nll_loss_forward", "nll_loss2d_forward")}
"""Operators that read only some elements of their first tensor."""
_BAGS = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}
"""Operators that sum rows of their first tensor, of which the second one holds the indices."""
_UNTOUCHED = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
"""Operators that allocate memory and neither read nor write it."""


def _recurrent(inputs: Tensor, weights: Iterable[Tensor]) -> int:
    """Return the FLOP of all steps with all matrices; inputs are (T, N, features) or packed (steps, features)."""
    num_steps = inputs.numel() // inputs.shape[-1]
    return 2 * num_steps * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _attention(query: Tensor, key: Tensor, value: Tensor, num_by_keys: int, num_by_values: int) -> int:
    """Return the FLOP of products of scores (..., queries, keys) with keys and with values (..., keys, width)."""
    products = num_by_keys * key.shape[-2] * key.shape[-1] + num_by_values * value.shape[-2] * value.shape[-1]
    return 2 * math.prod(query.shape[:-1]) * products


def _convolution_backward(grad: Tensor, inputs: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any,
                          dilation: Any, transposed: bool, output_padding: Any, groups: int,
                          output_mask: Sequence[bool], **_: Any) -> int:
    """Return the FLOP of a convolution's gradients of inputs and weights: each as many as the convolution.

    PyTorch's formula overestimates the weight gradient of a grouped convolution by a factor of `groups`.
    """
    # Each weight is multiplied once at every position of the outputs, or of the inputs if transposed.
    positions = inputs if transposed else grad
    num_positions = positions.shape[0] * math.prod(positions.shape[2:])
    return 2 * num_positions * weight.numel() * (output_mask[0] + output_mask[1])


_aten = torch.ops.aten
FORMULAS: dict[Any, Callable[..., int]] = {
    # On a CPU: one layer in one direction, whose backward always computes the gradients of inputs and weights.
    _aten.mkldnn_rnn_layer: lambda x, w_ih, w_hh, *_, **__: _recurrent(x, [w_ih, w_hh]),
    _aten.mkldnn_rnn_layer_backward: lambda x, w_ih, w_hh, *_, **__: 2 * _recurrent(x, [w_ih, w_hh]),
    # On a GPU: all layers and directions; the last argument of the backward selects the gradients.
    _aten._cudnn_rnn: lambda x, weights, *_, **__: _recurrent(x, weights),
    _aten._cudnn_rnn_backward: lambda x, weights, *rest, **__: (1 + bool(rest[-1][3])) * _recurrent(x, weights),
    # Pointwise: their matrix products are dispatched separately.
    **dict.fromkeys((_aten._thnn_fused_lstm_cell, _aten._thnn_fused_lstm_cell_backward_impl,
                     _aten._thnn_fused_gru_cell, _aten._thnn_fused_gru_cell_backward), lambda *_, **__: 0),
    # Scores and weighted sums; backward the scores again, and gradients of query, key, value and scores. As in
    # PyTorch, a causal mask does not reduce them.
    _aten._scaled_dot_product_flash_attention_for_cpu:
        lambda query, key, value, *_, **__: _attention(query, key, value, 1, 1),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda grad, query, key, value, *_, **__: _attention(query, key, value, 3, 2),
    _aten.convolution_backward: _convolution_backward,
}
"""FLOP by operator, from its arguments and, as `out_val`, its result, for operators that PyTorch counts as zero or
incorrectly; 1 multiply-accumulate is 2 FLOP. Like PyTorch's they count no pointwise work."""


def formula_of(packet: Any) -> Callable[..., int] | None:
    """Return the FLOP formula of an operator without overload; None if there is none."""
    return FORMULAS.get(packet) or flop_registry.get(packet)


def flop_pass(case: Case, batch: Any) -> tuple[list[dict[str, Any]], FlopPass]:
    """Return rows of the table `flop` for one iteration of a case, and facts about the pass.

    FLOP are counted for convolutions, matrix products, recurrent layers and attention, per dispatched operator, also in
    the backward. The formulas are PyTorch's and `FORMULAS`. Bytes are those of every operator's inputs
    and outputs (views: none), the minimum traffic without fusion.

    *Error*: exact for these operators; pointwise work is not counted, as in the published counts. The fact `uncounted`
    names operators with much work but no formula.

    The model is built again on fake tensors; of the batch only shapes and types are used. Of a decoding, it is the
    iteration in the middle of the outputs.
    """
    with fake_tensors(case) as fake:
        # Created anew: a tensor of another device cannot be converted among fake ones.
        fake_batch = tree_map_only(Tensor, lambda tensor: torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype), batch)
        loop = fake_loop(case, itertools.repeat(fake_batch), fake)
        if case.training:
            loop.iteration(lambda phase: contextlib.nullcontext())  # the first update also creates state
        loop.place(0.5)
        counter = _Counter(loop.model)
        with counter:
            loop.iteration(counter.mark)
    return counter.work.rows(), FlopPass("ok", uncounted=sorted(counter.work.uncounted),
                                         recomputed_flop=counter.work.recomputed_flop)


def work_of(call: Callable[[], Any]) -> tuple[float | None, float, list[str]]:
    """Return the FLOP of a call (null if none are counted), its bytes, and its heavy operators without a formula.

    They are counted as in `flop_pass`; the tensors may be real.
    """
    counter = _Counter(nn.Module())
    with counter:
        call()
    rows = counter.work.rows()
    counted = [row["flop"] for row in rows if row["flop"] is not None]
    return sum(counted) if counted else None, sum(row["bytes"] for row in rows), sorted(counter.work.uncounted)


class Work:
    """FLOP and bytes of an iteration by phase, layer and operator."""

    def __init__(self) -> None:
        self.uncounted: set[str] = set()
        """Operators with much work but no formula."""
        self.recomputed_flop = 0.0
        """FLOP of layers whose forward ran again inside a backward."""
        self._totals: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, None, 0])

    def add(self, phase: str, layer: str | None, operator: str, flop: float | None, num_bytes: float, *,
            recomputed: bool = False) -> None:
        """Add a call; its FLOP are None if there is no formula."""
        total = self._totals[phase, layer, operator]
        total[0] += 1
        total[2] += num_bytes
        if flop is not None:
            total[1] = (total[1] or 0.0) + flop
            self.recomputed_flop += flop * recomputed
        elif operator_type(operator) in NEEDS_FORMULA:
            self.uncounted.add(operator)

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of the table `flop`."""
        return [{"phase": phase, "layer": layer, "operator": operator, "operator_type": operator_type(operator),
                 "num_calls": num_calls, "flop": flop, "bytes": float(num_bytes)}
                for (phase, layer, operator), (num_calls, flop, num_bytes) in self._totals.items()]


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts every operator of the iteration by phase and layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()
        self._phase, self._layer = "data", RunningLayer(model)

    @contextlib.contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        self._phase = phase
        yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("prim", "profiler"):  # queries of a tensor, annotations: no work
            return func(*args, **kwargs)
        formula = formula_of(func._overloadpacket)
        if formula is None:
            with self:
                outputs = func.decompose(*args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        outputs = func(*args, **kwargs)
        operator = f"{func.namespace}::{func._overloadpacket.__name__}"
        if func.is_view or operator_type(operator) == "view":  # such as transpose_, whose is_view is False
            return outputs
        if operator == "aten::clone" and outputs.layout == torch.sparse_coo:
            return outputs  # a real backward pass keeps a sparse gradient instead of copying it
        flop = None if formula is None else float(formula(*args, **kwargs, out_val=outputs))
        self.work.add(self._phase, self._layer.name(), operator, flop, moved_bytes(operator, args, kwargs, outputs),
                      recomputed=self._layer.recomputes)
        return outputs


def moved_bytes(operator: str, args: Any, kwargs: Any, outputs: Any) -> int:
    """Return the bytes of a call's inputs and outputs; 0 if it only allocates; of a table, those of its used rows."""
    if operator in _UNTOUCHED:
        return 0
    if operator == "aten::add_" and getattr(args[1], "layout", None) == torch.sparse_coo:
        return _num_bytes(args[1]) + 2 * _num_bytes(args[1]._values())  # only the rows that have a gradient change
    written = _num_bytes(outputs)
    if operator in _BAGS:
        table, indices = args[:2]
        return written + int(indices.numel()) * _num_bytes(table[0]) + _num_bytes(args[1:], kwargs)
    if operator not in _LOOK_UPS:
        return written + _num_bytes(args, kwargs)
    return written + min(_num_bytes(args[:1]), written) + _num_bytes(args[1:], kwargs)


def _num_bytes(*values: Any) -> int:
    """Return the bytes of the distinct tensors among the values; repeated elements of an expanded one count once."""
    total = 0
    leaves = {id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}.values()
    for tensor in [part for leaf in leaves
                   for part in (dense_parts(leaf) if leaf.layout == torch.sparse_coo else [leaf])]:
        strides = tensor.stride() if tensor.layout == torch.strided else (1,) * tensor.dim()
        total += tensor.element_size() * math.prod(
            size for size, stride in zip(tensor.shape, strides, strict=True) if stride or not size)
    return total
