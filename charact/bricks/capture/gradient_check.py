"""Detection of training that bricks cannot represent: custom backward passes and recomputation of layers."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from charact.bricks.capture.dispatch_recorder import as_capture_error
from charact.bricks.capture.forward_pass import Program
from charact.bricks.captured_graph import CaptureError

_REMEDY = "which bricks cannot represent: cut it with --mode infer, or disable that"


def check_gradients(program: Program) -> None:
    """Run a training program once and check that bricks can represent its backward pass.

    Raises:
        CaptureError: the model has a custom `autograd.Function` or saved-tensor hooks, such as those of
            `torch.utils.checkpoint`; or it fails.
    """
    watch = _SavedTensors()
    with as_capture_error(), program.real_run(), torch.enable_grad(), watch:
        (loss,), _ = program(*program.fresh_inputs())
    name = _own_function(loss)
    if watch.packed or name == "CheckpointFunction":
        raise CaptureError("it changes how tensors are saved for the backward pass, as torch.utils.checkpoint does, "
                           + _REMEDY)
    if name is not None:
        raise CaptureError(f"its autograd.Function {name} has a custom backward pass, {_REMEDY}")


class _SavedTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records whether saved-tensor hooks are active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.packed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and check for saved-tensor hooks."""
        self.packed |= torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        return func(*args, **(kwargs or {}))


def _own_function(loss: Tensor) -> str | None:
    """Return the name of a custom `autograd.Function` in a loss's graph, or None."""
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
