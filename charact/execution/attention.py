"""Backends of scaled dot-product attention: which a device has, and a loop that uses only one."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from charact.core.errors import UserError
from charact.execution.compilations import OPTIONS
from charact.record.schema import ATTENTION, CPU_ATTENTION

FUSED = "fused"
"""What stands for a GPU's backends but math on fake tensors, which are on a CPU: flash attention, or math for inputs
that a CPU's flash attention does not take."""
_BACKENDS = {name: [SDPBackend.__members__[torch_name]] for name, torch_name in ATTENTION.items()}
_BACKENDS[FUSED] = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
_NO_KERNEL = "No available kernel"
"""PyTorch's error if no backend that is enabled takes the inputs."""
_LAST_OF_REASON = " (Triggered internally at"


def unsupported_reason(name: str | None, device: torch.device) -> str | None:
    """Return why a device has no such backend, with a remedy; None if it has, or none is named."""
    if device.type == "cpu" and name is not None and name not in (*CPU_ATTENTION, FUSED):
        return (f"PyTorch has no {name} attention for a CPU: use --attention {' or '.join(CPU_ATTENTION)}, or a CUDA "
                "device")
    return None


class AttentionBackend:
    """Restricts attention to a backend; None restricts nothing.

    Raises:
        UserError: the device has no such backend.
    """

    def __init__(self, name: str | None, device: torch.device) -> None:
        if reason := unsupported_reason(name, device):
            raise UserError(reason)
        self._name = name
        self._is_first, self._is_compiled, self._is_called = True, False, False

    @contextlib.contextmanager
    def restricted(self) -> Iterator[None]:
        """Use only the backend inside; the first time, attention must be called inside.

        Raises:
            UserError: nothing calls attention, or the backend does not take its inputs.
        """
        if self._name is None:
            yield
        elif self._is_first:
            with self._checked(self._name):
                yield
            self._is_first = False
        else:
            with sdpa_kernel(_BACKENDS[self._name]):
                yield

    def compile(self, model: torch.nn.Module) -> Callable[..., Any]:
        """Return the model, compiled by PyTorch's default compiler."""
        if self._name is None:
            return torch.compile(model, options=OPTIONS)
        self._is_compiled = True
        compiler: Any = torch._dynamo.lookup_backend("inductor")

        def compiled(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            self._is_called |= any(node.target is functional.scaled_dot_product_attention for node in graph.graph.nodes)
            return compiler(graph, inputs, config_patches=OPTIONS)

        return torch.compile(model, backend=compiled)

    @contextlib.contextmanager
    def _checked(self, name: str) -> Iterator[None]:
        # Compiled code would be compiled again once the watcher is gone.
        watcher = contextlib.nullcontext() if self._is_compiled else _CallWatcher()
        # PyTorch warns why a backend does not take the inputs; its error has no reason.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with sdpa_kernel(_BACKENDS[name]), watcher:
                    yield
            except RuntimeError as error:
                if _NO_KERNEL not in str(error):
                    raise
                reasons = [str(each.message).partition(_LAST_OF_REASON)[0] for each in caught]
                why = next((reason for reason in reasons if not reason.endswith("because:")), "PyTorch names no reason")
                raise UserError(f"{name} attention does not take this model's inputs ({why.rstrip('.')}): use another "
                                "--attention") from error
        for each in caught:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        if not (self._is_called or (isinstance(watcher, _CallWatcher) and watcher.is_called)):
            raise UserError("the model does not call scaled_dot_product_attention: leave --attention out")


class _CallWatcher(TorchFunctionMode):
    """Notes whether attention is called; `nn.MultiheadAttention` calls it unless it returns weights."""

    is_called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.is_called |= func is functional.scaled_dot_product_attention or (
            func is functional.multi_head_attention_forward and not kwargs.get("need_weights", True))
        return func(*args, **kwargs)
