"""Programs for a CUDA device on fake CPU tensors: their devices, autocast and gradient scalers.

The allocation trace of a CUDA program is recorded on fake CPU tensors, because fake CUDA tensors cannot be trained on
without a GPU. The program may name its device nevertheless.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _OnCpu(TorchFunctionMode):
    """Replaces CUDA devices in arguments by the CPU."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is torch.device:
            return _without_cuda(func(*args, **(kwargs or {})))
        return func(*map(_without_cuda, args), **{name: _without_cuda(value) for name, value in (kwargs or {}).items()})


def _without_cuda(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


@contextlib.contextmanager
def cuda_as_cpu() -> Iterator[None]:
    """Run a program for a CUDA device on the CPU, with CUDA's autocast; gradient scalers are disabled."""
    autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

    def begin_autocast(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
                       cache_enabled: bool | None = None) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        autocast(self, device_type, dtype, enabled, cache_enabled)

    def disabled_scaler(self: Any, *args: Any, **kwargs: Any) -> None:
        scaler(self, "cpu", enabled=False)

    with (_OnCpu(), patch.object(torch.autocast, "__init__", begin_autocast),
          patch.object(torch.amp.GradScaler, "__init__", disabled_scaler),
          patch.object(torch.cuda, "synchronize", _nothing),
          patch.object(torch.cuda, "reset_peak_memory_stats", _nothing)):
        yield


def _nothing(*_: Any, **__: Any) -> None:
    pass
