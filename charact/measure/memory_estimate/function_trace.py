"""Allocation trace of any function, recorded on fake tensors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder
from charact.measure.memory_estimate.fake_program import cannot_estimate_errors


def trace_function(build: Callable[[], Any], name: str) -> AllocationTrace:
    """Record the allocation trace of the second call of the function that `build` returns, on fake CPU tensors.

    Operators called by autograd belong to the backward phase, those in an optimizer's step to the update, all others to
    the forward phase. Tensors that `build` creates are input, except weights.

    Raises:
        CannotEstimate: it reads values of tensors, or has an operator without a fake kernel.
        UserError: `build` does not return a callable, or the callable runs no operator.
    """
    with cannot_estimate_errors(name), FakeTensorMode():
        recorder = _FunctionRecorder()
        with recorder.listening():
            with recorder:
                step = build()
            if not callable(step):
                raise UserError(f"{name} returned a {type(step).__name__}: let it create model, optimizer and inputs, "
                                "and return a function of no arguments that runs one iteration")
            for _ in range(2):
                recorder.begin()
                with recorder:
                    step()
                trace = recorder.ended()
        if not trace.ops:
            raise UserError(f"{name} returned a function that runs no operator of PyTorch: let it run one iteration")
        for number in trace.held:
            if trace.blocks[number].category in ("temporary", "unknown", "activations"):
                trace.blocks[number].category = "input"
        return trace


class _FunctionRecorder(Recorder):  # type: ignore[no-untyped-call]
    """A recorder that detects phases, weights, gradients and optimizer state through hooks."""

    def __init__(self) -> None:
        super().__init__(RunningLayer(nn.Module()))
        self._updating = False
        self._parameters: list[nn.Parameter] = []

    def ended(self) -> AllocationTrace:
        """End the iteration; also set the category of gradients without an optimizer."""
        self.hold("gradients", [parameter.grad for parameter in self._parameters])
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
        self.hold("weights", [tensor])
        if isinstance(tensor, nn.Parameter):
            self._parameters.append(tensor)

    def _update_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updating = True
        self.hold("gradients", [one.grad for group in optimizer.param_groups for one in group["params"]])

    def _update_ended(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updating = False
        self.hold("optimizer_state", tree_leaves(list(optimizer.state.values())))
