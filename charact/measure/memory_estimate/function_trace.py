"""Any function on fake tensors: the tape of one call of it."""

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
from charact.measure.memory_estimate.allocation_trace import Recorder, Tape
from charact.measure.memory_estimate.fake_program import predictable


def function_tape(build: Callable[[], Any], name: str) -> Tape:
    """Tape of the second call of the function that `build` returns; both see fake CPU tensors only.

    What autograd calls is the backward phase, what runs inside an optimizer's step is the update, all else forward.
    What `build` made besides weights is input.

    Raises:
        CannotPredict: it reads numbers of tensors, or has an operator without a fake kernel.
        UserError: `build` returns nothing that can be called, or what does nothing.
    """
    with predictable(name), FakeTensorMode():
        recorder = _FunctionRecorder()
        with recorder.listening():
            with recorder:
                step = build()
            if not callable(step):
                raise UserError(f"{name} returned a {type(step).__name__}: let it make model, optimizer and inputs, "
                                "and return a function of no arguments that runs one iteration")
            for _ in range(2):
                recorder.begin()
                with recorder:
                    step()
                tape = recorder.ended()
        if not tape.ops:
            raise UserError(f"{name} returned a function that runs no operator of PyTorch: let it run one iteration")
        for number in tape.held:
            if tape.blocks[number].category in ("temporary", "unknown", "activations"):
                tape.blocks[number].category = "input"
        return tape


class _FunctionRecorder(Recorder):  # type: ignore[no-untyped-call]
    """A recorder that finds phases, weights, gradients and state by itself."""

    def __init__(self) -> None:
        super().__init__(RunningLayer(nn.Module()))
        self._updating = False
        self._parameters: list[nn.Parameter] = []

    def ended(self) -> Tape:
        """Gradients are there without an optimizer, too."""
        self.hold("gradients", [parameter.grad for parameter in self._parameters])
        return super().ended()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Be told of modules' weights and of optimizers' steps."""
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
