"""Trainings that bricks cannot stand for: those whose backward pass is the model's own code, or runs layers again."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from charact.bricks.capture.dispatch_recorder import told_as_capture_error
from charact.bricks.capture.forward_pass import Program
from charact.bricks.captured_graph import CaptureError

_REMEDY = "which no brick can hold: cut it with --mode infer, or switch that off"


def refuse_own_gradients(program: Program) -> None:
    """Run a program that trains once, and look at what its backward pass would do.

    Raises:
        CaptureError: a function of the model's own makes gradients, or what layers keep for them is packed otherwise,
            as `torch.utils.checkpoint` does to compute it again; or the model fails.
    """
    watch = _SavedTensors()
    with told_as_capture_error(), program.real_run(), torch.enable_grad(), watch:
        (loss,), _ = program(*program.fresh_inputs())
    name = _own_function(loss)
    if watch.packed or name == "CheckpointFunction":
        raise CaptureError("it keeps tensors for the backward pass in its own way, as torch.utils.checkpoint does, "
                           + _REMEDY)
    if name is not None:
        raise CaptureError(f"its autograd.Function {name} makes gradients by code of its own, {_REMEDY}")


class _SavedTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether hooks stand between operators and what they keep for the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.packed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        self.packed |= torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        return func(*args, **(kwargs or {}))


def _own_function(loss: Tensor) -> str | None:
    """Name of an `autograd.Function` that a loss was made by; None where there are PyTorch's operators alone."""
    left: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return type(node).__name__.removesuffix("Backward")
        left += [following for following, _ in node.next_functions]
    return None
