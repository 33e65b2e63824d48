"""Weights on disk: written whole or not at all, and read without running what a file may hold."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.errors import UserError
from charact.measure.case import Case
from charact.measure.checkpoint import write_tensors
from charact.measure.out_of_memory import is_out_of_memory

State = dict[str, Tensor]
"""Tensors of a model by their qualified names: what `nn.Module.state_dict` gives."""

_PLACES = ("model", "state_dict", "weights")
"""Where checkpoints keep the state among other things."""
_SAFETENSORS = ".safetensors"
_REFUSED = re.compile(r"GLOBAL (\S+)")
"""In PyTorch's message: the class or function that a pickle names."""


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the model's state dict with `torch.save`, whole or not at all.

    Raises:
        UserError: the disk is full, or the place is not writable.
    """
    write_tensors(model.state_dict(), path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a model the weights of a file, converted to the model's type and device.

    Raises:
        UserError: as `read_weights` and `check_fit`.
    """
    place_weights(model, read_weights(path), path)


def place_weights(model: nn.Module, state: State, path: Path) -> None:
    """Copy weights into a model.

    Raises:
        UserError: as `check_fit`.
    """
    check_fit(model, state, path)
    model.load_state_dict(state, strict=False)  # what it holds twice may be there once


def read_weights(path: Path) -> State:
    """Weights of a file in host memory: a state dict, or a checkpoint that holds one as model, state_dict or weights.

    Files that end in `.safetensors` are mapped, so that their pages are read when the weights are first used; others
    are read by `torch.load`, which with `weights_only` makes tensors and plain containers and runs nothing.

    Raises:
        UserError: there is no such file, it is damaged, or it holds anything else.
    """
    if not path.is_file():
        raise UserError(f"there is no file of weights {path}: name one that torch.save or safetensors wrote")
    try:
        content = _read_safetensors(path) if path.suffix == _SAFETENSORS else _read_tensors(path)
    except UserError:
        raise
    except Exception as error:  # a damaged file makes the readers fail in every way
        if is_out_of_memory(error):
            raise
        raise UserError(_why_unreadable(path, error)) from error
    candidates: list[Any] = [content, *(content.get(place) for place in _PLACES)] if isinstance(content, dict) else []
    for candidate in candidates:
        if _is_state(candidate):
            return dict(candidate)
    raise UserError(f"{path} holds no state dict, neither by itself nor as {', '.join(_PLACES)}: "
                    "save model.state_dict()")


def check_weights(cases: Sequence[Case], weights: Path) -> None:
    """Refuse weights that do not fit a case's model, before anything is written; the models are made of fake tensors.

    Raises:
        UserError: the file cannot be read, or is of another model.
    """
    state = read_weights(weights)
    for case in {case.input_size: case for case in cases}.values():
        with FakeTensorMode():
            model = case.workload.model(case.dataset())
        check_fit(model, state, weights)


def check_fit(model: nn.Module, state: State, path: Path) -> None:
    """Compare names and shapes of weights with those of a model, which may be made of fake tensors.

    Raises:
        UserError: a weight is missing, is one too many, or has another shape.
    """
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
            raise UserError(f"{path} does not fit: its {name} is {_shape(tensor)}, the model's {_shape(wanted[name])}; "
                            "give the --variant, --input-sizes and --data (its classes or words) of its training")


def _read_tensors(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a pickle is of another protocol: it is read or refused all the same
        return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UserError(f'{path} needs safetensors: pip install "charact[safetensors]"') from error
    return load_file(path)


def _why_unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} may not be read by you: name another file, or have its permissions changed"
    if refused := _REFUSED.search(str(error)):
        return (f"{path} holds more than tensors and is not read, for that could run code ({refused[1]}): save "
                "model.state_dict() by itself")
    return f"{path} is no file of weights, or is damaged: name one that torch.save or safetensors wrote"


def _is_state(content: Any) -> bool:
    return isinstance(content, dict) and bool(content) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
