"""Sharding of a model over ranks by FSDP2."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from charact.core.errors import UserError

Shard = Callable[[nn.Module], None]
"""Function that shards a model in place, before its optimizers are created."""

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return a model's repeated blocks in order: modules with children whose class occurs several times, outermost.

    Containers and modules without parameters are no blocks. A model without repeated blocks has none.
    """
    counts = Counter(type(module) for module in model.modules() if _is_block(module))
    found: list[nn.Module] = []

    def search(module: nn.Module) -> None:
        for child in module.children():
            if counts[type(child)] > 1 and _is_block(child):
                found.append(child)
            else:
                search(child)

    search(model)
    return list(dict.fromkeys(found))


def _is_block(module: nn.Module) -> bool:
    return (not isinstance(module, _CONTAINERS) and next(module.children(), None) is not None
            and next(module.parameters(), None) is not None)


def shard_by_block(model: nn.Module, mesh: "torch.distributed.device_mesh.DeviceMesh") -> None:
    """Shard each repeated block of a model by FSDP2, then the rest of the model, in place."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise UserError("FSDP2 needs PyTorch 2.6 or newer: upgrade PyTorch, or use --parallel ddp") from None
    try:
        for module in (*repeated_blocks(model), model):
            fully_shard(module, mesh=mesh)
    except (ValueError, NotImplementedError, AssertionError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"FSDP2 cannot shard {type(model).__name__}: {why}; use --parallel ddp") from error
