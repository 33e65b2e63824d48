"""What held the memory of a program that ended because its memory ran out: the largest holders, and where it ended."""

import gc
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from charact.execution.out_of_memory import is_out_of_memory, reason_line, requested_bytes
from charact.measure.script.inspection.held_data import has_memory
from charact.measure.script.program.frames import line_of, location_of

_MOST_HOLDERS = 5
_CONTAINERS = (list, tuple, set, dict)


def out_of_memory_facts(error: BaseException, models: Mapping[str, Any], optimizers: Iterable[Any]
                        ) -> dict[str, Any] | None:
    """Return the facts of the record's `OutOfMemory`; None for errors that do not mean that memory ran out.

    Tensors that only an autograd graph holds are no Python objects, so they have no holder.
    """
    if not is_out_of_memory(error):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    location = location_of(frames)
    file, _, line = ("", "", "") if location is None else location[0].rpartition(":")
    layers = {id(module): f"{name}.{path}".removesuffix(".") for name, model in models.items()
              for path, module in model.named_modules()}
    running = (layers.get(id(frame.f_locals.get("self"))) for frame in frames)
    holders = sorted(_holders(models, optimizers, frames), key=lambda holder: -holder["bytes"])
    return {"reason": reason_line(error), "requested_bytes": requested_bytes(error),
            "layer": next(filter(None, running), None), "file": file or None, "line": int(line) if line else None,
            "text": None if location is None else line_of(frames, location)[0], "holders": holders[:_MOST_HOLDERS]}


def _holders(models: Mapping[str, Any], optimizers: Iterable[Any], frames: list[FrameType]) -> Iterator[dict[str, Any]]:
    """Yield weights, gradients and optimizer state by layer, and all other tensors by shape and type."""
    seen: set[int] = set()
    """Storages that have a holder."""

    def holder(category: str, tensors: Iterable[Any], **place: Any) -> dict[str, Any] | None:
        sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        sizes = {address: size for address, size in sizes.items() if address not in seen}
        seen.update(sizes)
        return None if not sizes else {
            "category": category, "bytes": sum(sizes.values()), "num_tensors": len(sizes), **place}

    states: dict[int, list[Any]] = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict):
                states[id(parameter)] = [each for each in state.values() if isinstance(each, torch.Tensor)]
    holders = []
    for name, model in models.items():
        for path, module in model.named_modules():
            layer = f"{name}.{path}".removesuffix(".")
            weights = [each for each in (*module.parameters(recurse=False), *module.buffers(recurse=False))
                       if has_memory(each)]
            holders += [holder("weights", weights, layer=layer),
                      holder("gradients", [each.grad for each in weights if each.grad is not None], layer=layer),
                      holder("optimizer_state", [state for each in weights for state in states.get(id(each), ())
                                                 if has_memory(state)], layer=layer)]
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and has_memory(each):
            groups[tuple(each.shape), str(each.dtype)].append(each)
    names = _names(frames)
    for (shape, _), tensors in groups.items():
        variable = next((names[id(each)] for each in tensors if id(each) in names), None)
        holders.append(holder("tensors", tensors, shape=list(shape), variable=variable))
    yield from filter(None, holders)


def _names(frames: list[FrameType]) -> dict[int, str]:
    """Return the names of the variables that hold objects, or containers of them, by the objects' `id`."""
    names: dict[int, str] = {}
    for frame in frames:  # the innermost first; the outermost name wins
        for name, value in list(frame.f_locals.items()):
            names[id(value)] = name
            if isinstance(value, _CONTAINERS):
                names |= {id(item): name for item in (value.values() if isinstance(value, dict) else value)}
    return names
