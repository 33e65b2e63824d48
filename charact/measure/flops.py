"""The FLOP pass: one iteration on fake tensors. Nothing is computed, so it costs a fraction of a second at any size."""

import contextlib
import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from charact.measure.case import Case
from charact.measure.flop_formulas import FORMULAS
from charact.measure.loop import Loop
from charact.measure.operator_types import operator_type
from charact.measure.precision import PRECISIONS

_AS_COUNTED = {"fp16": "bf16", "tf32": "fp32"}
"""Fake tensors have no values to scale by, and the work and the size of these are alike."""

_NEEDS_FORMULA = {"convolution", "GEMM", "attention", "recurrent"}
"""Operator types that do floating-point work by the million: one without a formula is named, not left out quietly."""


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
    precision = _AS_COUNTED.get(case.precision, case.precision)
    fake_case = replace(case, device=torch.device("cpu"), channels_last=False, compiled=False, precision=precision)
    with FakeTensorMode() as fake, _default_dtype(PRECISIONS[precision].weights):
        fake_batch = tree_map_only(torch.Tensor, lambda tensor: fake.from_tensor(tensor.cpu()), batch)
        loop = _loop(fake_case, fake_batch, fake)
        if case.device.type == "cuda":
            _choose_foreach(loop.optimizers)
        counter = _Counter(loop.model)
        with counter:
            loop.iteration(counter.mark)
    return counter.rows(), {"uncounted": sorted(counter.uncounted)}


def _loop(case: Case, batch: Any, fake: FakeTensorMode) -> Loop:
    """Loop on fake tensors; a model that reads numbers as it is made is made in earnest, and its tensors then faked."""
    try:
        return Loop(case, itertools.repeat(batch))
    except DataDependentOutputException:
        with unset_fake_temporarily():
            dataset = case.dataset()
            model = case.workload.prepare(case.workload.variant).model(dataset)
            _fake_tensors(model, fake)
        return Loop(case, itertools.repeat(batch), dataset=dataset, model=model)


def _fake_tensors(model: nn.Module, fake: FakeTensorMode) -> None:
    """Put fake tensors in the place of parameters and buffers; one that is shared stays so."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in made:
                    faked: torch.Tensor = fake.from_tensor(tensor.detach())
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(faked, tensor.requires_grad) if is_parameter else faked
                if tensor is not None:
                    tensors[name] = made[id(tensor)]  # type: ignore[assignment]


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Build models in a type: fake ones cannot be converted."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _choose_foreach(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Let optimizers update many tensors at once, as PyTorch chooses by itself where parameters are on a GPU."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every dispatched operator of the iteration, with the phase and layer that it belongs to.

    In the backward pass the layer is that of the forward operator: an autograd node carries the sequence number at
    which it was made, and `_layer_starts` holds from which number on which layer was running.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._phase = "data"
        self.uncounted: set[str] = set()
        self._layers: list[str | None] = [None]
        self._layer_starts: list[tuple[int, str | None]] = []
        self._parameter_layers = {id(parameter): name.rpartition(".")[0] or None
                                  for name, parameter in model.named_parameters()}
        self._totals: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [0, None, 0])
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(self._enter(name))
                module.register_forward_hook(self._leave, always_call=True)

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
        if func.is_view:
            return outputs
        operator = f"{func.namespace}::{func._overloadpacket.__name__}"
        total = self._totals[self._phase, self._layer(), operator]
        total[0] += 1
        total[2] += _num_bytes(args, kwargs) + _num_bytes(outputs)
        if formula is not None:
            total[1] = (total[1] or 0.0) + float(formula(*args, **kwargs, out_val=outputs))
        elif operator_type(operator) in _NEEDS_FORMULA:
            self.uncounted.add(operator)
        return outputs

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._layers.append(name)
            self._note_layer()

        return enter

    def _leave(self, *_: Any) -> None:
        self._layers.pop()
        self._note_layer()

    def _note_layer(self) -> None:
        self._layer_starts.append((torch.autograd._get_sequence_nr(), self._layers[-1]))  # type: ignore[attr-defined]

    def _layer(self) -> str | None:
        if self._phase != "backward":
            return self._layers[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        if hasattr(node, "variable"):
            return self._parameter_layers.get(id(node.variable))
        index = bisect_right(self._layer_starts, node._sequence_nr(), key=lambda start: start[0]) - 1
        return self._layer_starts[index][1] if index >= 0 else None


def _num_bytes(*values: Any) -> int:
    """Bytes of the distinct tensors among the values."""
    tensors = {id(leaf): leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
