"""Weight files: written atomically, read without executing code that they may contain, evicted from the page cache."""

import ctypes
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.core.errors import UserError
from charact.execution.case import Case
from charact.execution.tensor_files import Outline, outline, read, write_tensors

T = TypeVar("T")
State = dict[str, Tensor]
"""Tensors of a model by qualified name, as returned by `nn.Module.state_dict`."""
Outlines = dict[str, Outline]
"""Shapes and types of these tensors, without their values."""

_STATE_KEYS = ("model", "state_dict", "weights")
"""Keys under which checkpoints store the state dict."""
_MIN_LIMIT_BYTES, _LIMIT_RATIO = 2**30, 16
"""Limit of a file's size: the larger of 1 GiB and 16 times the model's size. A checkpoint with Adam's state in double
precision has 6 times the model's size."""


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the model's state dict atomically with `torch.save`."""
    write_tensors(model.state_dict(), path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model, converted to the model's type and device."""
    check_fit(model, read_outlines(path, model), path)
    place_weights(model, read_weights(path), path)


def place_weights(model: nn.Module, state: State, path: Path) -> None:
    """Copy weights into a model; raise a `UserError` that names their file if names or shapes differ."""
    check_fit(model, state, path)
    model.load_state_dict(state, strict=False)  # shared weights may be stored once


def read_outlines(path: Path, model: nn.Module) -> Outlines:
    """Return names and shapes of a file's weights, without reading values: a state dict, or a checkpoint with one."""
    if not path.is_file():
        raise UserError(f"weight file {path} not found: name a file written by torch.save or safetensors")
    return _state_in(outline(path, limit_for(model)), Outline, path)


def limit_for(model: nn.Module) -> int:
    """Return the size limit in bytes of a model's weight file or checkpoint."""
    num_bytes: int = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict(keep_vars=True).values())
    return max(_MIN_LIMIT_BYTES, _LIMIT_RATIO * num_bytes)


def read_weights(path: Path) -> State:
    """Return the weights, in host memory, of a file that `read_outlines` has checked."""
    return _state_in(read(path), Tensor, path)


def _state_in(content: Any, kind: type[T], path: Path) -> dict[str, T]:
    """Return the state dict of a file's content: itself, or its entry model, state_dict or weights."""
    candidates: list[Any] = [content, *(content.get(key) for key in _STATE_KEYS)] if isinstance(content, dict) else []
    for candidate in candidates:
        if isinstance(candidate, dict) and candidate and all(
                isinstance(name, str) and isinstance(tensor, kind) for name, tensor in candidate.items()):
            return dict(candidate)
    raise UserError(f"{path} holds no state dict, neither by itself nor as {', '.join(_STATE_KEYS)}: "
                    "save model.state_dict()")


def check_weights(cases: Sequence[Case], weights: Path) -> None:
    """Raise if weights do not fit a case's model, before anything is written; the models use fake tensors."""
    state: State = {}
    for case in {case.input_size: case for case in cases}.values():
        with FakeTensorMode():
            model = case.workload.model(case.dataset())
        check_fit(model, read_outlines(weights, model), weights)
        state = state or read_weights(weights)
        check_fit(model, state, weights)


def check_fit(model: nn.Module, state: Mapping[str, Tensor] | Mapping[str, Outline], path: Path) -> None:
    """Compare names and shapes of weights with those of a model, which may use fake tensors."""
    wanted = model.state_dict(keep_vars=True)
    # safetensors stores weights that are shared, such as tied embeddings, under one of their names.
    there = {id(wanted[name]) for name in state if name in wanted}
    missing = [name for name in wanted if name not in state and id(wanted[name]) not in there]
    unexpected = [name for name in state if name not in wanted]
    faults = [f"it lacks {_some(missing)}"] if missing else []
    faults += [f"it holds {_some(unexpected)}, which the model does not"] if unexpected else []
    if faults:
        raise UserError(f"{path} is of another model: {' and '.join(faults)}; name the workload and --variant that it "
                        "was saved from")
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise UserError(f"{path} does not fit: its {_shown(name)} is {_shape(tensor)}, the model's "
                            f"{_shape(wanted[name])}; give the --variant, --input-sizes and --data (its classes or "
                            "words) of its training")
        if isinstance(tensor, Tensor) and tensor.is_complex() and not wanted[name].is_complex():
            raise UserError(f"{path} does not fit: its {_shown(name)} holds complex numbers, the model's does not; "
                            "save the state of the same model")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{_shown(names[0])}{more}"


def _shown(name: str) -> str:
    return name[:80].encode("ascii", "backslashreplace").decode() if name[:80].isprintable() else ascii(name[:80])


def _shape(tensor: Tensor | Outline) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"


def drop_cached(path: Path) -> str | None:
    """Evict a file's pages from the page cache; return why pages remain, or None.

    *Error*: caches of the disk and of a hypervisor cannot be evicted.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no posix_fadvise that drops cached pages"
    with path.open("rb") as file:
        os.fsync(file.fileno())  # dirty pages are not evicted
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    frac = cached_frac(path)
    return f"{frac:.0%} of the file stayed in memory (a file system in memory, or another process uses it)" \
        if frac else None


def cached_frac(path: Path) -> float:
    """Return the share of a file's pages that are in the page cache, by Linux's `mincore`.

    Raises:
        OSError: the system call failed.
    """
    num_bytes = path.stat().st_size
    if not num_bytes:
        return 0.0
    num_pages = -(-num_bytes // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * num_pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(num_bytes), states)
        del first  # otherwise the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore: {os.strerror(ctypes.get_errno())}")
    return sum(state & 1 for state in states) / num_pages
