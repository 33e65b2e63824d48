"""What PyTorch's registry tells of an operator: whether it calls others, and whether it writes into its input alone."""

from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey

COMPOSITE = DispatchKey.CompositeImplicitAutograd
"""Kernel of an operator that is made of others."""


@cache
def is_composite(operator: Any) -> bool:
    """Whether a CPU computes an operator by calling others."""
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(operator.name(), COMPOSITE) and not has(operator.name(), DispatchKey.CPU)


@cache
def is_in_place(operator: Any) -> bool:
    """Whether an operator writes into its first tensor and gives that back, in the shape that it had."""
    schema = operator._schema
    if len(schema.returns) != 1 or not schema.name.endswith("_") or torch.Tag.inplace_view in operator.tags:
        return False
    into, back = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return into is not None and back is not None and into.is_write and into.before_set == back.before_set
