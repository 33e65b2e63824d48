"""Programs for a CUDA device on fake CPU tensors: their devices, autocast and gradient scalers.

The allocation trace of a CUDA program is recorded on fake CPU tensors, because fake CUDA tensors cannot be trained on
without a GPU. The program may still name a CUDA device.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


class _OnCpu(TorchFunctionMode):
    """Replaces CUDA devices in arguments by the CPU."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is torch.device:
            return _CPU if args and _is_index(args[0]) else _without_cuda(func(*args, **kwargs))
        index_at = _INDEX_AT.get(func)
        return func(*(_CPU if at == index_at and _is_index(value) else _without_cuda(value)
                      for at, value in enumerate(args)),
                    **{name: _CPU if name == "device" and _is_index(value) else _without_cuda(value)
                       for name, value in kwargs.items()})


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _without_cuda(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


@contextlib.contextmanager
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
