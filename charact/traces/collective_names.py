"""Collectives in traces and in dumps of the flight recorder: their names and sizes."""

import re
from functools import cache

import msgspec

TYPE_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
    "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
"""Bytes of an element by the name of its type in PyTorch."""

_SPLIT = (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all"),
          ("reducescatter", "reduce_scatter"))
_KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?([A-Za-z]+)", re.IGNORECASE)
_COMMUNICATION: tuple[tuple[str, str], ...] = (
    # pattern of a kernel's function without underscores, origin of such names
    (r"nccl|rccl", "NCCL, RCCL"),
    (r"crossdevice(reduce|store)", "custom all-reduce of vLLM, SGLang and AITER"),
    (r"quickreduce|allreduceprototype", "quick all-reduce of vLLM on AMD’s devices"),
    (r"(?<!block)(?<!warp)(allreduce|allgather|reducescatter|alltoall)",
     "TensorRT-LLM (oneShotAllReduceKernel), FlashInfer, PyTorch’s symmetric memory (one_shot_all_reduce_kernel)"),
    (r"multimem|c10d::", "PyTorch’s symmetric memory, also over NVLink multicast"),
    (r"deepep::(?!layout)|ep(dispatch|combine)(intra|inter)|moea2a|pplx",
     "DeepEP, MORI, TensorRT-LLM, pplx: dispatch and combine of experts"),
    (r"nvshmem|rocshmem|mscclpp|userbuffers", "NVSHMEM, rocSHMEM, MSCCL++, Transformer Engine"),
)
_EXCHANGES = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _COMMUNICATION))
_COMPUTES = re.compile(r"gemm|matmul")
"""A product that is fused with a collective counts as computation."""
_OPERATIONS = (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("reducescatter", "reduce_scatter"),
               ("alltoall", "all_to_all"), ("crossdevicereduce", "all_reduce"), ("quickreduce", "all_reduce"),
               ("dispatch", "dispatch"), ("combine", "combine"), ("barrier", "barrier"))
_UNKNOWN = ("", "generic")
"""Names of kernels of which RCCL has one for all collectives."""


def operation_name(name: str) -> str:
    """Return a collective's name as in the flight recorder: `all_gather` for `_allgather_base`."""
    plain = name.lower().strip("_").removesuffix("_base").removesuffix("_coalesced")
    for joined, split in _SPLIT:
        plain = plain.replace(joined, split)
    return plain or name


@cache
def is_collective(kernel: str) -> bool:
    """Return whether a kernel, by the name of its function, exchanges data between ranks."""
    function = _function(kernel)
    return bool(_EXCHANGES.search(function)) and ("nccl" in function or not _COMPUTES.search(function))


def kernel_operation(name: str) -> str:
    """Return the collective of a kernel's name: `all_reduce` for ncclDevKernel_AllReduce_Sum_f32_RING_LL."""
    if match := _KERNEL.search(name):
        return "unknown" if match[1].lower() in _UNKNOWN else operation_name(match[1])
    function = _function(name)
    return next((operation for pattern, operation in _OPERATIONS if pattern in function), "unknown")


def _function(kernel: str) -> str:
    """Return a kernel's qualified function in lower case, without underscores, template arguments and parameters."""
    name = kernel.replace("(anonymous namespace)", "").replace("<unnamed>", "")
    return re.split(r"[<(]", name, maxsplit=1)[0].replace("_", "").lower()


class RecordedCollective(msgspec.Struct):
    """A collective in a dump of the flight recorder of torch.distributed."""

    profiling_name: str
    time_created_ns: int
    record_id: int = 0
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []
    duration_ms: float | None = None
    retired: bool = True

    @property
    def backend(self) -> str:
        """Name of the backend, such as gloo."""
        return self.profiling_name.partition(":")[0]

    @property
    def operation(self) -> str:
        """Name without its backend: all_reduce."""
        return self.profiling_name.partition(":")[2] or self.backend

    @property
    def group(self) -> str:
        """Name of the process group, `default` for that of all ranks."""
        name, description = self.process_group
        return "default" if description == "default_pg" else name if description in ("", "undefined") else description

    @property
    def sequence(self) -> int:
        """Index of the collective in its group."""
        return self.p2p_seq_id if self.is_p2p else self.collective_seq_id

    @property
    def num_bytes(self) -> int | None:
        """Bytes of its inputs or outputs, whichever are more; None if a type is unknown or a size is impossible."""
        sizes = (_num_bytes(self.input_sizes, self.input_dtypes), _num_bytes(self.output_sizes, self.output_dtypes))
        return None if sizes[0] is None or sizes[1] is None else max(sizes[0], sizes[1])


class _Group(msgspec.Struct):
    ranks: str = ""


class Dump(msgspec.Struct):
    """A dump of the flight recorder."""

    entries: list[RecordedCollective] = []
    pg_config: dict[str, _Group] = {}

    def group_size(self, collective: RecordedCollective) -> int | None:
        """Return the number of ranks in the group of a collective; None if the dump does not have it."""
        return self.size_of(collective.process_group[0], *([""] if collective.group == "default" else []))

    def size_of(self, *names: str) -> int | None:
        """Return the number of ranks in the first of some groups that the dump has; None if it has none."""
        known = [self.pg_config[name].ranks for name in names if name in self.pg_config and self.pg_config[name].ranks]
        return known[0].count(",") + 1 if known else None


def _num_bytes(shapes: list[list[int]], types: list[str]) -> int | None:
    total = 0
    for place, shape in enumerate(shapes):
        num_bytes = TYPE_BYTES.get(types[place] if place < len(types) else "")
        if num_bytes is None or any(not 0 <= length < 1 << 40 for length in shape):
            return None
        for length in shape:
            num_bytes *= length
        total += num_bytes
    return total if total < 1 << 53 else None
