"""Allocation trace of any function, recorded on fake tensors."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.execution.fake_tensors import choose_foreach, fake_modules
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder
from charact.measure.memory_estimate.cuda_as_cpu import cuda_as_cpu
from charact.measure.memory_estimate.fake_program import CannotEstimate, cannot_estimate_errors, eager_transformers


def trace_function(build: Callable[[], Any], name: str, *, on_cuda: bool = False) -> AllocationTrace:
    """Record the allocation trace of the second call of the function that `build` returns, on fake CPU tensors.

    Operators called by autograd belong to the backward phase, those in an optimizer's step to the update, all others to
    the forward phase. Tensors that are alive before the second call are input, except weights, gradients and optimizer
    state. Gradients that a step clears without an optimizer count as temporary.

    Args:
        build: creates the function.
        name: its name in messages.
        on_cuda: whether it is for a CUDA device.

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
        self._registrations: list[weakref.ref[torch.Tensor]] = []
        """Parameters and buffers that modules registered; a replaced one is freed."""

    def begin(self) -> None:
        """Begin an iteration; weights may have been converted to another type since their registration."""
        super().begin()
        self.hold("weights", self._weights())

    def ended(self) -> AllocationTrace:
        """End the iteration; also set the category of gradients without an optimizer."""
        self.hold("gradients", [tensor.grad for tensor in self._weights() if tensor.is_leaf])
        return super().ended()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Register hooks on modules' weights and optimizers' steps."""
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

    def _registered(self, module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            self.add_weight(tensor)

    def add_weight(self, tensor: torch.Tensor) -> None:
        """Add a parameter or buffer of a module."""
        if not is_lazy(tensor):
            self.hold("weights", [tensor])
            self._registrations.append(weakref.ref(tensor))

    def _weights(self) -> list[torch.Tensor]:
        return [tensor for reference in self._registrations if (tensor := reference()) is not None]

    def _update_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updating = True
        if self._on_cuda:
            choose_foreach([optimizer])
        self.hold("gradients", [one.grad for group in optimizer.param_groups for one in group["params"]])

    def _update_ended(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updating = False
        self.hold("optimizer_state", tree_leaves(list(optimizer.state.values())))
