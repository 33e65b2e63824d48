"""Facts and settings of a watched program: of its models, optimizers and loaders, and of PyTorch."""

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from charact.execution.compilations import compilations
from charact.machine.facts import usable_cores
from charact.measure.script.program.frames import CreationPlaces

_PARALLEL = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
_FSDP2 = "FSDPModule"
"""Base class of the modules that `fully_shard` was applied to."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def owner_facts(number: int, objects: Mapping[int, Any], variable: str | None, places: CreationPlaces
                ) -> dict[str, Any]:
    """Return a note with the current facts of an owner of slices: a model, an optimizer or a loader's iterator."""
    obj = objects[number]
    facts: dict[str, Any] = {"note": "owner", "owner": number, "class": type(obj).__name__, "variable": variable}
    with contextlib.suppress(Exception):  # a class of the program may lack an attribute
        if hasattr(obj, "param_groups"):
            facts["settings"] = optimizer_settings(obj) | places.of(obj)
        elif hasattr(obj, "named_modules") and any(not is_lazy(parameter) for parameter in obj.parameters()):
            facts["settings"] = model_settings(obj)
    if hasattr(obj, "param_groups"):
        owned = {id(parameter) for group in obj.param_groups for parameter in group["params"]}
        models = [other for other, model in objects.items() if hasattr(model, "parameters")
                  and any(id(parameter) in owned for parameter in model.parameters())]
        return facts | {"kind": "optimizer", "models": models}
    if hasattr(obj, "named_modules"):
        modules = {id(module) for module in obj.modules()} - {id(obj)}
        return facts | {
            "kind": "model", "parts": [other for other, part in objects.items() if id(part) in modules],
            "num_parameters": sum(parameter.numel() for parameter in obj.parameters() if not is_lazy(parameter))}
    sampler = getattr(obj, "_index_sampler", None)
    return facts | {"kind": "loader", "batch_size": getattr(sampler, "batch_size", None),
                    "num_workers": getattr(obj, "_num_workers", None)}


def model_settings(model: Any) -> dict[str, Any]:
    """Return the settings of a model, see `ModelSettings`, with its current `num_hooks` and `num_modules`."""
    tensors = [*model.parameters(), *model.buffers()]
    dtypes: Counter[str] = Counter()
    for tensor in tensors:
        if not is_lazy(tensor) and tensor.is_floating_point():
            dtypes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.modules.conv._ConvNd)]
    inner, parallel = _unwrapped(model)
    return {"class": inner, "dtypes": dict(dtypes), "num_convolutions": len(weights),
            "channels_last": _are_channels_last(weights), "num_hooks": sum(
                len(getattr(module, hooks, ())) for module in model.modules() for hooks in _HOOKS),
            "num_modules": sum(1 for _ in model.modules()), "parallel": parallel,
            "find_unused_parameters": getattr(model, "find_unused_parameters", None) if parallel else None}


def _unwrapped(model: Any) -> tuple[str, str | None]:
    """Return the class name of a model without its wrappers, and that of its parallel wrapper, or None."""
    parallel = None
    for _ in range(3):  # compiled, and parallel
        name = type(model).__name__
        if isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        elif name in _PARALLEL and isinstance(inner := getattr(model, "module", None), torch.nn.Module):
            parallel, model = name, inner
    if any(base.__name__ == _FSDP2 for base in type(model).__mro__):
        return type(model).__name__.removeprefix("FSDP"), _FSDP2
    return type(model).__name__, parallel


def _are_channels_last(weights: list[Any]) -> bool | None:
    """Return whether all convolutions' weights have the memory format channels-last.

    None if the format is ambiguous, as that of weights of 1 x 1 convolutions.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    unambiguous = [weight for weight in weights if weight.dim() in formats and not is_lazy(weight)
                   and not (weight.is_contiguous() and weight.is_contiguous(memory_format=formats[weight.dim()]))]
    if not unambiguous:
        return None
    return all(weight.is_contiguous(memory_format=formats[weight.dim()]) for weight in unambiguous)


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer, see `OptimizerSettings`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sizes = [parameter.numel() for parameter in parameters if not is_lazy(parameter)]
    devices = Counter(str(parameter.device) for parameter in parameters)
    group: dict[str, Any] = max(optimizer.param_groups, key=lambda group: len(group["params"]), default={})
    return {"implementation": _implementation(optimizer, group), "num_tensors": len(parameters),
            "num_groups": len(optimizer.param_groups),
            "num_parameters": sum(sizes), "device": devices.most_common(1)[0][0] if devices else None}


def _implementation(optimizer: Any, group: dict[str, Any]) -> str | None:
    """Return how PyTorch's own `step` updates the parameters of a group; None for another `step`."""
    step = getattr(type(optimizer), "step", None)
    if not str(getattr(step, "__module__", "")).startswith("torch.optim.") or "foreach" not in group:
        return None
    if group.get("fused"):
        return "fused"
    foreach = group["foreach"]
    if foreach is None and group.get("fused") is None:
        from torch.optim.optimizer import _default_to_fused_or_foreach

        capturable = group.get("capturable", True)
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        _, foreach = _default_to_fused_or_foreach(parameters, bool(group.get("differentiable")))
        foreach = foreach and not (isinstance(group.get("lr"), torch.Tensor) and not capturable)
    return "foreach" if foreach else "for-loop"


def loader_settings(loader: Any) -> dict[str, Any]:
    """Return the settings of a data loader, see `LoaderSettings`."""
    dataset = loader.dataset
    batch_size = loader.batch_size
    if batch_size is None:
        batch_size = getattr(loader.batch_sampler, "batch_size", None)
    return {"class": type(loader).__name__, "dataset": type(dataset).__name__, "in_memory": _is_in_memory(dataset),
            "num_items": _attempt(lambda: len(dataset)),
            "batch_size": batch_size if isinstance(batch_size, int) else None,
            "num_workers": loader.num_workers, "persistent_workers": bool(loader.persistent_workers),
            "prefetch_factor": loader.prefetch_factor, "pin_memory": bool(loader.pin_memory),
            "multiprocessing_context": start_method(loader)}


def start_method(loader: Any) -> str | None:
    """Return how a loader starts its workers, such as "fork"; None without workers."""
    if not loader.num_workers:
        return None
    context = loader.multiprocessing_context or multiprocessing
    return str(context.get_start_method())


def _is_in_memory(dataset: Any, depth: int = 5) -> bool | None:
    """Return True if indexing a dataset only reads memory; None if unknown."""
    inner: Iterable[Any] = ()
    if isinstance(dataset, Subset):
        inner = [dataset.dataset]
    elif isinstance(dataset, ConcatDataset):
        inner = dataset.datasets
    elif isinstance(dataset, StackDataset):
        inner = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
    elif isinstance(dataset, (TensorDataset, list, tuple, torch.Tensor)) or type(dataset).__name__ == "ndarray":
        return True
    parts = [_is_in_memory(each, depth - 1) for each in inner] if depth else []
    return True if parts and all(parts) else None


def process_settings() -> dict[str, Any]:
    """Return PyTorch's settings of the process, see `ProgramSettings`."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    reads: dict[str, Callable[[], Any]] = {
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "matmul_precision": torch.get_float32_matmul_precision,
        "cudnn_benchmark": lambda: cudnn.benchmark, "cudnn_tf32": lambda: cudnn.allow_tf32,
        "matmul_tf32": lambda: matmul.allow_tf32,
    }
    return {"threads": {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads(),
                        "num_usable_cores": usable_cores()},
            **{name: _attempt(read) for name, read in reads.items()}, "compile": compilations()}


def _attempt(read: Callable[[], Any]) -> Any:
    """Return a setting; None if it cannot be read, as after a program has set it through both interfaces of PyTorch."""
    with contextlib.suppress(Exception):
        return read()
    return None
