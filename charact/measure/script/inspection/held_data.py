"""Tensors that a program holds: its largest data with a narrower type for it, and tensors that grow in number."""

import gc
import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch

from charact.measure.script.program.frames import NO_LINE, line_of_program, program_variables, variable_name

_LEAST_BYTES = 16 * 2**20
_MOST_ROWS, _MOST_OBJECTS, _MOST_PARTS, _DEEPEST = 3, 5_000, 64, 4
"""Maximum numbers of reported variables, of objects that are looked at, of parts of each, and of steps to a part."""
_FEWEST_ALIKE = 8
"""Minimum number of objects of one type, such as samples, whose tensors count together."""
_MOST_VALUES = 65_536
"""Maximum number of values of a tensor that are looked at: equally spaced ones."""
_CONTAINERS = (list, tuple, deque)
"""Types whose items are looked at; classes derived from them may read an item from a file when it is asked for."""
_NUM_COMPARED = 8
"""Number of rows that are compared with the next one."""
_NARROW = torch.uint8, torch.int8, torch.int16, torch.int32
_PIXEL = 255
"""Largest value of a pixel: pictures are often stored as floating-point numbers from 0 to 1."""

_MOST_GROUPS = 3
_FEWEST_TENSORS = 8
"""Minimum number of live tensors of one shape that are listed."""
_MOST_NODES = 20_000
"""Maximum number of nodes of a graph that are counted."""
_FEWEST_NODES = 50
"""Minimum number of nodes of a graph that is listed."""
_HOLDERS = (list, dict, tuple, set)
_ADDS = r"\b{0}\b\s*(\+=|\.(append|extend|add|update|insert|appendleft)\(|\[[^\]]*\]\s*=)|\b{0}\s*=\s*.*\b{0}\b"
"""Pattern of a line that adds to a variable."""


class _Held(NamedTuple):
    """Tensors that a variable holds; arrays are tensors of the same memory."""

    variable: str
    owner: Any
    """Object with the last attribute in the variable's name; None if it has none."""
    tensors: list[torch.Tensor]
    """Some of the tensors."""
    num_tensors: int
    """Number of all of them."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them, by the mean of those that are known."""
        sizes = [each.untyped_storage().nbytes() for each in self.tensors]
        return int(self.num_tensors * sum(sizes) // len(sizes))


def held_data() -> list[dict[str, Any]]:
    """Return the largest tensors and NumPy arrays that variables of the program hold, largest first, at most 3.

    They are found from the variables of the running functions, by attributes and items. Tensors of a container with
    many of them, or with many objects that hold one each, count together. Modules and optimizers, whose tensors are
    weights and state, are left out; so are mapped files, and what holds less than 16 MiB.

    Returns:
        For each: variable; shape, of the first one; dtype; num_tensors; bytes; narrower, the type that would hold all
        values that were looked at, None if there is none; scale, 255 if that is true of the values times 255, else 1;
        overlaps, whether each row is the one before shifted by one, as in windows of a series; and the line that
        assigns it (file, line, text; None if not found).
    """
    by_address: dict[int, _Held] = {}
    for held in _variables():
        if held.num_bytes >= _LEAST_BYTES:
            by_address.setdefault(held.tensors[0].untyped_storage().data_ptr(), held)
    rows = []
    for held in sorted(by_address.values(), key=lambda held: -held.num_bytes)[:_MOST_ROWS]:
        tensor = held.tensors[0]
        narrower, scale = narrower_type(tensor)
        rows.append({
            "variable": held.variable, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
            "num_tensors": held.num_tensors, "bytes": held.num_bytes, "scale": scale,
            "narrower": None if narrower is None else str(narrower).removeprefix("torch."),
            "overlaps": held.num_tensors == 1 and rows_overlap(tensor), **_assigning_line(held)})
    return rows


def narrower_type(tensor: torch.Tensor) -> tuple[torch.dtype | None, int]:
    """Return the narrowest type that holds a tensor's values exactly, and the factor that they need before.

    The type is None if there is no narrower one, or if all values are equal: the tensor may not be filled yet.
    """
    if not tensor.is_contiguous() or tensor.element_size() == 1 or tensor.is_complex():
        return None, 1
    flat = tensor.view(-1)
    values = flat[:: max(1, flat.numel() // _MOST_VALUES)]
    if not values.numel() or bool((values == values[0]).all()):
        return None, 1
    if kind := _whole_number_type(values):
        return kind, 1
    if not values.is_floating_point():
        return None, 1
    scaled = (values * _PIXEL).round()
    if bool((scaled / _PIXEL == values).all()) and _whole_number_type(scaled) is torch.uint8:
        return torch.uint8, _PIXEL
    is_single = values.dtype == torch.float64 and bool((values.float().double() == values).all())
    return torch.float32 if is_single else None, 1


def rows_overlap(tensor: torch.Tensor) -> bool:
    """Return whether each row of a tensor is the one before it shifted by one, in some rows that are looked at."""
    if tensor.dim() < 2 or len(tensor) < _NUM_COMPARED or tensor.shape[1] < _NUM_COMPARED:
        return False
    places = range(0, len(tensor) - 1, max(1, len(tensor) // _NUM_COMPARED))
    return not bool((tensor[0] == tensor[0, 0]).all()) and all(
        torch.equal(tensor[place, 1:], tensor[place + 1, :-1]) for place in places)


def _whole_number_type(values: torch.Tensor) -> torch.dtype | None:
    if values.is_floating_point() and not bool((values == values.round()).all()):
        return None
    low, high = float(values.min()), float(values.max())
    return next((kind for kind in _NARROW if kind.itemsize < values.element_size()
                 and torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max), None)


def _variables() -> Iterator[_Held]:
    """Yield the tensors that the program's variables hold."""
    pending = deque((name, None, value, 0) for name, value in program_variables())
    seen: set[int] = set()
    while pending and len(seen) < _MOST_OBJECTS:
        variable, owner, value, depth = pending.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        tensor = _as_tensor(value)
        if tensor is not None:
            yield _Held(variable, owner, [tensor], 1)
        elif type(value) in _CONTAINERS:
            items = list(islice(value, _MOST_PARTS))
            if len(value) >= _FEWEST_ALIKE and len({type(item) for item in items}) == 1:
                yield from _alike(f"{variable}[...]", owner, items, len(value))
            elif depth < _DEEPEST:
                pending.extend((f"{variable}[{number}]", owner, item, depth + 1)
                               for number, item in enumerate(items))
        elif depth < _DEEPEST:
            pending.extend((*part, depth + 1) for part in _parts(variable, owner, value))


def _alike(variable: str, owner: Any, items: list[Any], count: int) -> Iterator[_Held]:
    """Yield the tensors of `count` objects of one type, of which `items` are some: by attribute or item of all."""
    tensors = [each for each in map(_as_tensor, items) if each is not None]
    if len(tensors) == len(items):
        yield _Held(variable, owner, tensors, count)
    elif not tensors:
        by_name: dict[str, tuple[Any, list[torch.Tensor]]] = {}
        for item in items:
            numbered = ((f"{variable}[{number}]", owner, part) for number, part in enumerate(item[:_MOST_PARTS])
                        ) if type(item) in (list, tuple) else _parts(variable, owner, item)
            for name, part_owner, part in numbered:
                if (tensor := _as_tensor(part)) is not None:
                    by_name.setdefault(name, (part_owner, []))[1].append(tensor)
        for name, (part_owner, parts) in by_name.items():
            yield _Held(name, part_owner, parts, count * len(parts) // len(items))


def _parts(variable: str, owner: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of an object: name, owner of the attribute, value."""
    if isinstance(value, dict):
        for key, item in list(islice(dict.items(value), _MOST_PARTS)):
            if isinstance(key, (str, int)):
                yield f"{variable}[{key!r}]", owner, item
    elif not isinstance(value, (type, torch.nn.Module, torch.optim.Optimizer)) and not callable(value):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and "__builtins__" not in attributes and not hasattr(value, "__spec__"):
            yield from ((f"{variable}.{name}", value, part) for name, part in list(attributes.items()))


def _as_tensor(value: Any) -> torch.Tensor | None:
    """Return a tensor or array of numbers as a tensor without a graph; None for anything else, and for mapped files."""
    if type(value) is torch.Tensor:
        return value.detach() if has_memory(value) else None
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray or value.dtype.kind not in "fiu" or not value.size:
        return None
    if isinstance(value.base, numpy.memmap) or not value.flags.c_contiguous or not value.flags.writeable:
        return None
    try:
        return torch.from_numpy(value)
    except TypeError:  # PyTorch does not know the type
        return None


def _assigning_line(held: _Held) -> dict[str, Any]:
    """Return the line that assigns the last attribute of a variable, or else one before it."""
    module = type(held.owner).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    own_files = (file,) if file and module.partition(".")[0] != "torch" else ()
    for name in reversed(re.findall(r"(?:^|\.)(\w+)", held.variable)):
        line = line_of_program(rf"\b{name}\b(\s*,[\s\w.]+)*\s*(:[^=]+)?=[^=]", own_files)
        if line["file"]:
            return line
    return dict(NO_LINE)


def tensor_census(models: list[Any], optimizers: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the groups of live tensors that hold the most memory, and the tensors with the largest graphs.

    Parameters, buffers, gradients and optimizer state are left out. It takes some 10 ms for 100,000 Python objects.

    Returns:
        `held_tensors`: groups of at least 8 tensors of one shape: shape, num_tensors, bytes, has_graph, function (that
        computed the last tensor), variable that holds them, and the line that adds to it (file, line, text).
        `held_graphs`: tensors whose graph has at least 50 nodes: num_nodes, age_frac, variable and line. Unknown values
        are None.
    """
    known = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    known += [tensor.grad for tensor in list(known) if tensor.is_leaf and tensor.grad is not None]
    known += [value for optimizer in optimizers for state in optimizer.state.values() if isinstance(state, dict)
              for value in state.values() if isinstance(value, torch.Tensor)]
    known_ids = set(map(id, known))
    # A loop over the objects would let the collector see them change.
    tensors = [obj for obj in gc.get_objects() if issubclass(type(obj), torch.Tensor) and id(obj) not in known_ids]
    tensors = [tensor for tensor in tensors if has_memory(tensor)]
    return {"held_tensors": _groups(tensors), "held_graphs": _graphs(tensors)}


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's values are in memory; those that `torch.compile` traces with have none."""
    try:
        storage = tensor.untyped_storage()
        return tensor.layout is torch.strided and storage.device.type != "meta" and storage.data_ptr() >= 0
    except Exception:  # wrappers have none, and subclasses of others may do anything
        return False


def _groups(tensors: list[Any]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for tensor in tensors:
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
    with torch.enable_grad():
        node: Any = torch.ones((), requires_grad=True).clone().grad_fn
    newest = node._sequence_nr()
    rows = []
    for tensor in tensors:
        if tensor.grad_fn is None or tensor.numel() > 1 << 20:
            continue
        nodes = _nodes(tensor.grad_fn)
        if len(nodes) >= _FEWEST_NODES:
            # PyTorch numbers the nodes of a thread; those that accumulate gradients all have a number beyond.
            oldest = min(node._sequence_nr() for node in nodes)
            rows.append((len(nodes), max(newest - oldest, 0) / newest, tensor))
    rows.sort(key=lambda row: -row[0])
    return [{"num_nodes": num_nodes, "age_frac": age_frac, **_holder(tensor)}
            for num_nodes, age_frac, tensor in rows[:_MOST_GROUPS]]


def _nodes(root: Any) -> set[Any]:
    """Return the nodes of a graph, at most `_MOST_NODES`."""
    seen, pending = {root}, [root]
    while pending and len(seen) < _MOST_NODES:
        for following, _ in pending.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return seen


def _holder(tensor: Any) -> dict[str, Any]:
    """Return the variable that holds a tensor or the container around it, and the line that adds to it."""
    name = variable_name(tensor)
    if name is None:
        for container in gc.get_referrers(tensor):
            if type(container).__name__ == "deque" or isinstance(container, _HOLDERS):
                name = variable_name(container)
            if name is not None:
                break
    return {"variable": name} | (line_of_program(_ADDS.format(re.escape(name))) if name else NO_LINE)
