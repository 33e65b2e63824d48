"""Census of a program's live tensors, to name what holds memory that grows."""

import gc
import re
from collections import defaultdict
from typing import Any

import torch

from charact.measure.script.program.frames import NO_LINE, line_of_program, variable_name

_MOST_GROUPS = 3
_FEWEST_TENSORS = 8
"""Minimum number of live tensors of one shape that are listed."""
_MOST_NODES = 20_000
"""Maximum number of nodes of a graph that are counted."""
_FEWEST_NODES = 50
"""Minimum number of nodes of a graph that is listed."""
_CONTAINERS = (list, dict, tuple, set)
_ADDS = r"\b{0}\b\s*(\+=|\.(append|extend|add|update|insert|appendleft)\(|\[[^\]]*\]\s*=)|\b{0}\s*=\s*.*\b{0}\b"
"""Pattern of a line that adds to a variable."""


def tensor_census(models: list[Any], optimizers: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the groups of live tensors that hold the most memory, and the tensors with the largest graphs.

    Parameters, buffers, gradients and optimizer state are left out. It takes some 10 ms for 100,000 Python objects.

    Returns:
        `held_tensors`: groups of at least 8 tensors of one shape: shape, num_tensors, bytes, has_graph, function (that
        computed the last tensor), variable that holds them, and the line that adds to it (file, line, text).
        `held_graphs`: tensors whose graph has at least 50 nodes: num_nodes, variable and line. Unknown values are None.
    """
    known = {id(tensor) for tensor in _known_tensors(models, optimizers)}
    # A loop over the objects would let the collector see them change.
    tensors = [obj for obj in gc.get_objects() if issubclass(type(obj), torch.Tensor) and id(obj) not in known]
    return {"held_tensors": _groups(tensors), "held_graphs": _graphs(tensors)}


def _known_tensors(models: list[Any], optimizers: list[Any]) -> list[Any]:
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    tensors += [parameter.grad for parameter in list(tensors) if parameter.is_leaf and parameter.grad is not None]
    tensors += [value for optimizer in optimizers for state in optimizer.state.values() if isinstance(state, dict)
                for value in state.values() if isinstance(value, torch.Tensor)]
    return tensors


def _groups(tensors: list[Any]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.device.type != "meta":
            groups[tuple(tensor.shape), str(tensor.dtype), tensor.grad_fn is not None].append(tensor)
    rows = []
    for (shape, _, has_graph), members in groups.items():
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in members}
        if len(members) >= _FEWEST_TENSORS:
            rows.append((sum(storages.values()), shape, has_graph, members))
    rows.sort(key=lambda row: -row[0])
    return [{"shape": list(shape), "num_tensors": len(members), "bytes": size, "has_graph": has_graph,
             "function": members[-1].grad_fn.name() if has_graph else None, **_holder(members[-1])}
            for size, shape, has_graph, members in rows[:_MOST_GROUPS]]


def _graphs(tensors: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for tensor in tensors:
        if tensor.grad_fn is None or tensor.numel() > 1 << 20:
            continue
        num_nodes = _num_nodes(tensor.grad_fn)
        if num_nodes >= _FEWEST_NODES:
            rows.append((num_nodes, tensor))
    rows.sort(key=lambda row: -row[0])
    return [{"num_nodes": num_nodes, **_holder(tensor)} for num_nodes, tensor in rows[:_MOST_GROUPS]]


def _num_nodes(root: Any) -> int:
    """Return the number of nodes of a graph, at most `_MOST_NODES`."""
    seen, pending = {root}, [root]
    while pending and len(seen) < _MOST_NODES:
        for following, _ in pending.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return len(seen)


def _holder(tensor: Any) -> dict[str, Any]:
    """Return the variable that holds a tensor or the container around it, and the line that adds to it."""
    name = variable_name(tensor)
    if name is None:
        for container in gc.get_referrers(tensor):
            if type(container).__name__ == "deque" or isinstance(container, _CONTAINERS):
                name = variable_name(container)
            if name is not None:
                break
    return {"variable": name} | (line_of_program(_ADDS.format(re.escape(name))) if name else NO_LINE)
