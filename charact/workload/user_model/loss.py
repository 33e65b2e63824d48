"""Losses of a user's model: the model's own, one of PyTorch by name, a user's function, or a default."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.workload.user_model.import_target import chosen, imported, kind_of
from charact.workload.user_model.input_spec import InputSpec

Loss = Callable[[Any, Tensor | None], tuple[Tensor, str]]
"""Function that returns, for outputs and target, the loss and a description of it."""

_LOSSES = sorted(name for name in dir(functional) if not name.startswith("_")
                 and (name.endswith("_loss") or "cross_entropy" in name or name == "kl_div"))


def default_loss(outputs: Any, target: Tensor | None) -> tuple[Tensor, str]:
    """Return the model's own loss, if the outputs have one; else one against the target; else a mean of outputs."""
    own = _part(outputs, "loss")
    if own is not None:
        return _one_number(own, "outputs.loss"), "the model's own, outputs.loss"
    if target is None:
        means = [output.float().mean() for output in _floating(outputs)]
        return torch.stack(means).mean(), "mean of all floating outputs"
    if not target.is_floating_point():
        return cross_entropy(main_output(outputs), target), "cross_entropy against the target"
    output = main_output(outputs)
    if output.shape != target.shape:  # PyTorch would broadcast one to the other
        raise ValueError(f"the output has the shape {tuple(output.shape)}, but the target {tuple(target.shape)}: "
                         "give the output's shape after -> in --input-spec")
    return functional.mse_loss(output, target), "mse_loss against the target"


def named_loss(name: str, spec: InputSpec) -> Loss:
    """Return a loss of `torch.nn.functional` by name, or `package.module:function` of outputs and target.

    It can be pickled, because the processes of ranks receive it.
    """
    if ":" in name:
        function = imported(name, "--loss")
        if not callable(function):
            raise UserError(f"--loss: {name} is a {kind_of(function)}: name a function of outputs and target")
        return partial(_of_one_function, function, name, False)
    of_torch: Any = cross_entropy if name == "cross_entropy" else getattr(functional, chosen(name, _LOSSES, "--loss"))
    if spec.target is None:
        raise UserError(f"--loss {name} compares the outputs with a target: name one in --input-spec, "
                        "as in 3xSxS -> int64[1000]")
    return partial(_of_one_function, of_torch, name, True)


def _of_one_function(function: Any, name: str, of_torch: bool, outputs: Any, target: Tensor | None
                     ) -> tuple[Tensor, str]:
    arguments = [main_output(outputs) if of_torch else outputs, *([] if target is None else [target])]
    return _one_number(function(*arguments), name), name


def main_output(outputs: Any) -> Tensor:
    """Return the input of PyTorch's losses: `logits`, if the outputs have them, else their first floating tensor.

    Raises:
        TypeError: there is none.
    """
    logits = _part(outputs, "logits")
    return _floating(outputs)[0] if logits is None else logits


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy; the classes are the last axis if the others are the target's, as in language models."""
    if logits.dim() > 2 and logits.shape[:-1] == target.shape:
        logits, target = logits.flatten(0, -2), target.flatten()
    return functional.cross_entropy(logits, target if target.is_floating_point() else target.long())


def _part(outputs: Any, name: str) -> Tensor | None:
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return found if isinstance(found, Tensor) else None


def _floating(outputs: Any) -> list[Tensor]:
    found = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not found:
        raise TypeError(f"the model returned a {type(outputs).__name__} without a floating tensor for a loss: name "
                        "a --loss package.module:function")
    return found


def _one_number(loss: Any, name: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else kind_of(loss)
        raise TypeError(f"the loss {name} is not one number but {found}")
    return loss
