"""Atomic writing of tensor files, and reading of untrusted ones: by safetensors, or by PyTorch with `weights_only`.

`torch.load` with `weights_only` makes only tensors and plain values, and runs no code of a file.
"""

import errno
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from charact.core.bounded_reading import check_declared
from charact.core.errors import UserError
from charact.core.files import atomic_write
from charact.execution.out_of_memory import is_out_of_memory

SAFETENSORS = ".safetensors"


class DamagedFileError(UserError):
    """A malformed file, or one with more than dense tensors and plain values."""


@dataclass(frozen=True)
class Outline:
    """Shape of a tensor in a file, before its values are read."""

    shape: tuple[int, ...]


def outline(path: Path, most_bytes: int) -> Any:
    """Return the structure of a file, with an `Outline` in place of each tensor; reads no tensor.

    Files that end in `.safetensors` are in that format, others in that of `torch.save`. `most_bytes` is the limit of
    the file's size, unless the user sets another.

    Raises:
        DamagedFileError: the file is damaged, or has anything but dense tensors and plain values.
    """
    try:
        check_declared(path.stat().st_size, path, most_bytes, "has")
    except OSError as error:
        raise UserError(_unreadable(path, error)) from error
    return _outlined(read(path, "meta"))


def _outlined(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise DamagedFileError("the file has sparse tensors: save dense ones")
        return Outline(tuple(value.shape))
    if isinstance(value, dict):
        return {key: _outlined(each) for key, each in dict.items(value)}  # a file may replace the method
    return type(value)(map(_outlined, value)) if type(value) in (list, tuple) else value


def read(path: Path, device: torch.device | str = "cpu") -> Any:
    """Return the content of a file; its tensors on the device `meta` have no values.

    Files that end in `.safetensors` are memory-mapped, so that their pages are read on first use.

    Raises:
        DamagedFileError: the file is damaged, or has anything but tensors and plain values.
    """
    try:
        if path.suffix == SAFETENSORS:
            try:
                from safetensors import safe_open
                from safetensors.torch import load_file
            except ImportError as error:
                raise UserError('files in this format need safetensors: pip install "charact[safetensors]"') from error
            if device != "meta":
                return load_file(path)
            with safe_open(path, framework="pt") as file:
                return {name: torch.empty(file.get_slice(name).get_shape(), device="meta")
                        for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle's protocol, which does not matter
            return torch.load(path, map_location=device, weights_only=True)
    except UserError:
        raise
    except Exception as error:  # damaged files raise all kinds of errors
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: of a place that is none
            raise UserError(_unreadable(path, error)) from error
        if is_out_of_memory(error) and device != "meta":
            raise
        if isinstance(error, pickle.UnpicklingError) and "nsupported" in str(error):
            raise DamagedFileError(f"{path} has more than tensors and is not read, because that could run code: "
                                   "save only model.state_dict()") from error
        raise DamagedFileError(f"{path} is not a file of weights, or is damaged: name one from torch.save or "
                               "safetensors") from error


def write_tensors(content: Any, path: Path) -> None:
    """Write content for `torch.load(weights_only=True)`, atomically."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # An error of the file system or a signal, which torch does not repeat.
            if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
                raise error.__context__ from error
            raise


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"{path} is not readable for you: name another file, or change its permissions"
    return f"{path} cannot be read ({(error.strerror or str(error)).lower()}): name another file"
