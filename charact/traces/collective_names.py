"""Names of collectives and of tensors' types in traces."""

import re

TYPE_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
    "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
"""Bytes of an element by the name of its type in PyTorch."""

_SPLIT = (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all"),
          ("reducescatter", "reduce_scatter"))
_KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?([A-Za-z]+)", re.IGNORECASE)
_UNKNOWN = ("", "generic")
"""Names of kernels of which RCCL has one for all collectives."""


def operation_name(name: str) -> str:
    """Return a collective's name as in the flight recorder: `all_gather` for `_allgather_base`."""
    plain = name.lower().strip("_").removesuffix("_base").removesuffix("_coalesced")
    for joined, split in _SPLIT:
        plain = plain.replace(joined, split)
    return plain or name


def kernel_operation(name: str) -> str:
    """Return the collective of a kernel's name: `all_reduce` for ncclDevKernel_AllReduce_Sum_f32_RING_LL."""
    found = _KERNEL.search(name)
    operation = "" if found is None else found[1].lower()
    return "unknown" if operation in _UNKNOWN else operation_name(operation)
