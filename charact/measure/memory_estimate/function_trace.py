"""Allocation trace of any function, recorded on fake CPU tensors.

Those of a CUDA program are on the CPU, too, because fake CUDA tensors cannot be trained on without a GPU. The program
may still name a CUDA device.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.execution.fake_tensors import choose_foreach, fake_modules
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder
from charact.measure.memory_estimate.fake_program import CannotEstimate, cannot_estimate_errors, eager_transformers

_CPU = torch.device("cpu")
_INDEX_AT = {Tensor.to: 1, torch._C._nn._parse_to: 0}
"""Position of the argument that may be a device's index; `Module.to` calls `_parse_to`."""
_ANSWERS = {
    "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True, "set_device": None,
    "is_current_stream_capturing": False, "synchronize": None, "reset_peak_memory_stats": None,
}  # fmt: skip
"""What functions of torch.cuda return; PyTorch calls some of them itself if CUDA is available."""
_RANDOM_STATE = dict.fromkeys(("get_rng_state", "set_rng_state"))
"""What functions of torch.cuda and torch.cpu return; `torch.random.fork_rng` calls those of the CPU for `cuda`."""


def trace_function(build: Callable[[], Any], name: str, *, on_cuda: bool = False) -> AllocationTrace:
    """Record the allocation trace of the second call of the function that `build` returns, on fake CPU tensors.

    Operators called by autograd belong to the backward phase, those in an optimizer's step to the update, all others to
    the forward phase. Tensors that are alive before the second call are input, except weights, gradients and optimizer
    state. Gradients that a step clears without an optimizer count as temporary.

    Raises:
        CannotEstimate: the function reads values of tensors, is compiled, or has an operator without a fake kernel.
    """
    recorder = _FunctionRecorder(on_cuda=on_cuda)
    with (cannot_estimate_errors(name, "leave that out"), FakeTensorMode(), fake_modules(recorder.add_weight),
          _no_compiler(name), eager_transformers(), cuda_as_cpu() if on_cuda else nullcontext()):
        with recorder.listening():
            with recorder:
                step = build()
            if not callable(step):
                raise UserError(f"{name} returned a {type(step).__name__}: let it create model, optimizer and inputs, "
                                "and return a function of no arguments that runs one iteration")
            for _ in range(2):
                recorder.begin()
                with recorder.recording():
                    step()
                trace = recorder.ended()
        if not trace.ops:
            raise UserError(f"{name} returned a function that runs no operator of PyTorch: let it run one iteration")
        for block in trace.blocks:
            if block.birth is None and block.category in ("temporary", "unknown", "activations"):
                block.category = "input"
        return trace


@contextmanager
def _no_compiler(name: str) -> Iterator[None]:
    """Raise an error for `torch.compile` and what it compiled before, whose fused kernels keep other tensors."""
    def compiled(*_: Any, **__: Any) -> Any:
        raise CannotEstimate(f"the memory of {name} cannot be estimated: it calls torch.compile, whose kernels "
                             "allocate other tensors; leave that out to estimate it without the compiler")

    with (patch.object(torch, "compile", compiled), patch.object(nn.Module, "compile", compiled),
          torch.compiler.set_stance("fail_on_recompile")):
        yield


class _FunctionRecorder(Recorder):  # type: ignore[no-untyped-call]
    """A recorder that detects phases, weights, gradients and optimizer state through hooks."""

    def __init__(self, *, on_cuda: bool) -> None:
        super().__init__(RunningLayer(nn.Module()))
        self._on_cuda = on_cuda
        self._updating = False
        self._registrations: list[weakref.ref[Tensor]] = []
        """Parameters and buffers that modules registered; a replaced one is freed."""

    def begin(self) -> None:
        super().begin()
        self.hold("weights", self._weights())  # they may have been converted to another type since their registration

    def ended(self) -> AllocationTrace:
        self.hold("gradients", [tensor.grad for tensor in self._weights() if tensor.is_leaf])
        return super().ended()

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for register in (register_module_parameter_registration_hook, register_module_buffer_registration_hook):
                stack.callback(register(self._registered).remove)
            stack.callback(register_optimizer_step_pre_hook(self._update_begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._update_ended).remove)
            yield

    def _phase_now(self) -> str:
        if torch._C._current_autograd_node() is not None:
            return "backward"
        return "update" if self._updating else "forward"

    def _registered(self, module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            self.add_weight(tensor)

    def add_weight(self, tensor: Tensor) -> None:
        if not is_lazy(tensor):
            self.hold("weights", [tensor])
            self._registrations.append(weakref.ref(tensor))

    def _weights(self) -> list[Tensor]:
        return [tensor for reference in self._registrations if (tensor := reference()) is not None]

    def _update_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updating = True
        if self._on_cuda:
            choose_foreach([optimizer])
        self.hold("gradients", [parameter.grad for group in optimizer.param_groups for parameter in group["params"]])

    def _update_ended(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updating = False
        self.hold("optimizer_state", tree_leaves(list(optimizer.state.values())))


class _OnCpu(TorchFunctionMode):
    """Replaces CUDA devices in arguments by the CPU."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is torch.device:
            return _CPU if args and type(args[0]) is int else _without_cuda(func(*args, **kwargs))
        index_at = _INDEX_AT.get(func)
        return func(*(_without_cuda(value, may_be_index=at == index_at) for at, value in enumerate(args)),
                    **{name: _without_cuda(value, may_be_index=name == "device") for name, value in kwargs.items()})


def _without_cuda(value: Any, *, may_be_index: bool = False) -> Any:
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    if may_be_index and type(value) is int:
        return _CPU
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


@contextmanager
def cuda_as_cpu() -> Iterator[None]:
    """Run a program for a CUDA device on the CPU, with CUDA's autocast.

    Gradient scalers are disabled, so their few bytes and skipped steps are not estimated.
    """
    autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

    def begin_autocast(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
                       cache_enabled: bool | None = None) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        autocast(self, device_type, dtype, enabled, cache_enabled)

    def disabled_scaler(self: Any, *args: Any, **kwargs: Any) -> None:
        scaler(self, "cpu", enabled=False)

    def returning(answers: dict[str, Any]) -> dict[str, Any]:
        return {name: partial(_returned, value) for name, value in answers.items()}

    try:
        with (_OnCpu(), patch.object(torch.autocast, "__init__", begin_autocast),
              patch.object(torch.amp.GradScaler, "__init__", disabled_scaler),
              patch.multiple("torch.cuda", **returning(_ANSWERS | _RANDOM_STATE)),
              patch.multiple("torch.cpu", create=True, **returning(_RANDOM_STATE))):
            yield
    finally:
        # Hugging Face's transformers remembers whether CUDA is available.
        cached = getattr(sys.modules.get("transformers.utils.import_utils"), "is_torch_cuda_available", None)
        getattr(cached, "cache_clear", _returned)()


def _returned(value: Any = None, *_: Any, **__: Any) -> Any:
    return value
