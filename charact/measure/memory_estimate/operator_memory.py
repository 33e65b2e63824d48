"""Memory that operators of a CPU allocate inside, measured by running each call once, alone.

oneDNN copies tensors into its own layouts and accumulates gradients in buffers of each thread; no tensor shows these
allocations. They depend on shapes, threads and the processor, so each call runs at its own shapes, with zeros as
values, under the profiler's memory events. Results are cached for this processor and library. Allocations of other
threads during a call count as its own.
"""

import contextlib
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.core.files import user_cache
from charact.core.operator_types import operator_type
from charact.execution.case_outcome import missing_kernel, one_line
from charact.execution.out_of_memory import free_host_bytes, host_memory_guard
from charact.measure.passes.memory_pass import dense_parts, start_memory_events, stop_memory_events

_MARK = "charact_operator#"
"""Prefix of profiler annotations around calls; the call's index follows."""
_FREE_SHARE = 0.5
"""Maximum share of the free memory for one call."""
_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Environment variables by which oneDNN chooses algorithms."""
_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Names of the options of precisions with 16-bit tensors."""
_BETWEEN_RANKS = ("c10d", "_c10d_functional", "fsdp")
_EXACT_TYPES = (torch.float32, torch.float64)
"""Types of matrices whose products BLAS computes from the tensors themselves."""


class Layout(NamedTuple):
    """Shape, strides and type of a strided CPU tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Return the bytes from the first to the last element."""
        if 0 in self.shape:
            return 0
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
                ) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """A call of an operator; equal calls allocate the same memory in equal surroundings (threads, library, CPU).

    *Error*: memory that depends on values may differ.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    grad_enabled: bool
    """Whether it was called in grad mode, in which oneDNN's recurrent layers keep a workspace."""

    def layouts(self) -> Iterator[Layout]:
        """Yield the layouts of the tensors among the arguments, in order."""
        yield from _layouts((self.args, tuple(value for _, value in self.kwargs)))

    @property
    def input_bytes(self) -> int:
        """Return the bytes of the tensors among the arguments."""
        return sum(layout.num_bytes for layout in self.layouts())

    @cached_property
    def text(self) -> str:
        """Key of the call: calls with the same text are equal; 1, 1.0 and True differ."""
        return f"{self.operator}{self.args!r}{self.kwargs!r}{self.grad_enabled}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperatorCall) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments to call the operator with: tensors of zeros, which are valid indices, too."""
        return ([_with_tensors(value) for value in self.args],
                {name: _with_tensors(value) for name, value in self.kwargs})


def call_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
    """Describe a call of an operator; return None if it allocates only its outputs, or cannot be repeated alone.

    Views, operators without tensors and collectives allocate nothing inside. Neither do pointwise operators on tensors
    of one type; a Python number may allocate up to 128 bytes, which is neglected. Nor do products in single or double
    precision, unless fewer digits are allowed, whose matrices BLAS reads without copies.
    """
    if operator.namespace in _BETWEEN_RANKS or operator.is_view or _type_of(operator) in ("allocation", "view"):
        return None
    call = described(operator, args, kwargs)
    if call is None:
        return None
    layouts = list(call.layouts())
    alike = len({layout.dtype for layout in layouts}) <= 1
    if not layouts or (alike and torch.Tag.pointwise in operator.tags):
        return None
    is_product = _type_of(operator) == "GEMM" and set(float32_precisions()) == {"ieee"}
    return None if is_product and alike and all(_is_matrix_for_blas(layout) for layout in layouts) else call


def float32_precisions() -> tuple[str, ...]:
    """Return the types in which oneDNN may compute float32 products and convolutions; "ieee" is float32 itself."""
    backend: Any = torch.backends.mkldnn
    if not hasattr(backend, "matmul"):  # before PyTorch 2.9
        return ("ieee" if torch.get_float32_matmul_precision() == "highest" else "bf16",)
    settings = [part.fp32_precision for part in (backend.matmul, backend.conv, backend.rnn)]
    return tuple("ieee" if setting == "none" else setting for setting in settings)


def described(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
    """Describe a call of an operator; return None if an argument is neither a plain value nor a strided tensor."""
    try:
        return OperatorCall(operator, _described(args), tuple((name, _described(value)) for name, value in
                                                              kwargs.items()), torch.is_grad_enabled())
    except _NotDescribed:
        return None


class _NotDescribed(Exception):
    """An argument is neither a strided CPU tensor nor a plain value."""


@cache
def _type_of(operator: Any) -> str:
    return operator_type(f"{operator.namespace}::{operator._overloadpacket.__name__}")


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise _NotDescribed
        return Layout(tuple(value.shape), tuple(value.stride()), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    if isinstance(value, torch.Generator):
        return None  # the default one allocates the same
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout,
                                           torch.memory_format)):
        return value
    raise _NotDescribed


def _layouts(value: Any) -> Iterator[Layout]:
    if isinstance(value, Layout):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _layouts(part)


def _with_tensors(value: Any) -> Any:
    if isinstance(value, Layout):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="cpu").zero_()
    return [_with_tensors(part) for part in value] if isinstance(value, tuple) else value


def _is_matrix_for_blas(layout: Layout) -> bool:
    """Return whether BLAS reads a tensor's matrices as they are: rows or columns without gaps between elements."""
    if layout.dtype not in _EXACT_TYPES or len(layout.shape) < 2:
        return layout.dtype in _EXACT_TYPES
    (rows, columns), (down, right) = layout.shape[-2:], layout.stride[-2:]
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))


@dataclass(frozen=True)
class CallMemory:
    """Memory that a call allocated."""

    peak_bytes: int
    """Peak of what it allocated, its outputs included."""
    output_bytes: tuple[int, ...]
    """Bytes of each new storage that it returned, in order."""


class OperatorMemory:
    """Measured memory of calls, in this process and in the user's cache: a database for each kind of surroundings.

    Without a usable cache (no home directory, no permission, a full disk, a damaged file), calls are measured again.
    """

    def __init__(self) -> None:
        self._known: dict[OperatorCall, CallMemory] = {}
        self._reasons: dict[OperatorCall, str] = {}
        """Why calls could not be measured at the last try."""
        self._surroundings: str | None = None
        self._database: Path | None = None

    def cached(self, calls: Collection[OperatorCall]) -> dict[OperatorCall, CallMemory]:
        """Return the memory of the calls that were measured before, from this process or the cache."""
        now = json.dumps(surroundings(), sort_keys=True)
        if now != self._surroundings:
            self._surroundings, self._known, self._reasons, self._database = now, {}, {}, None
            with contextlib.suppress(RuntimeError):  # no home directory
                self._database = (user_cache() / "operators" / hashlib.sha256(now.encode()).hexdigest()[:16]
                                  ).with_suffix(".sqlite")
        missing = {_digest(call): call for call in calls if call not in self._known}
        if self._database is not None and self._database.exists():
            rows = self._execute("SELECT call, peak_bytes, output_bytes FROM calls WHERE call IN "
                                 "(SELECT value FROM json_each(?))", [[json.dumps(list(missing))]])
            self._known |= {missing[digest]: CallMemory(peak_bytes, tuple(map(int, sizes.split())))
                            for digest, peak_bytes, sizes in rows if all(map(str.isdigit, sizes.split()))}
        return {call: self._known[call] for call in calls if call in self._known}

    def reason(self, call: OperatorCall) -> str | None:
        """Return why a call could not be measured at the last try; None if it was, or was not tried."""
        return self._reasons.get(call)

    def measure(self, calls: Sequence[OperatorCall], expected_bytes: Callable[[OperatorCall], float]) -> None:
        """Measure the calls without a result; calls that do not fit or fail get a `reason` instead.

        `expected_bytes` estimates the bytes that a call allocates, to check whether it fits in the free memory.
        """
        known, allowed = self.cached(calls), _FREE_SHARE * free_host_bytes()
        chosen = []
        for call in calls:
            need = call.input_bytes + expected_bytes(call)
            if call not in known and need > allowed:
                self._reasons[call] = (f"{call.operator} alone needs about {need / 2**20:,.4g} MiB, and half of the "
                                       f"free memory is {allowed / 2**20:,.4g} MiB")
            elif call not in known:
                chosen.append(call)
        if not chosen:
            return
        with host_memory_guard():
            measured = _run(chosen, self._reasons)
        self._known |= measured
        self._reasons = {call: reason for call, reason in self._reasons.items() if call not in measured}
        self._execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)",
                      [[_digest(call), memory.peak_bytes, " ".join(map(str, memory.output_bytes))]
                       for call, memory in measured.items()])

    def _execute(self, statement: str, rows: list[list[Any]]) -> list[Any]:
        """Execute a statement for each row of parameters in one transaction; after an error, stop using the cache."""
        if self._database is None:
            return []
        try:
            self._database.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._database, timeout=1)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS calls "
                                 "(call TEXT PRIMARY KEY, peak_bytes INTEGER, output_bytes TEXT)")
                return [result for row in rows for result in database.execute(statement, row)]
        except (OSError, sqlite3.OperationalError):  # not writable, locked, or the disk is full
            self._database = None
        except (sqlite3.DatabaseError, ValueError):
            with contextlib.suppress(OSError):
                self._database.unlink()  # damaged
            self._database = None
        return []


def _digest(call: OperatorCall) -> str:
    return hashlib.sha256(call.text.encode()).hexdigest()[:32]


def surroundings() -> dict[str, Any]:
    """Return what the memory of a call depends on, besides the call: versions, processor, threads, settings."""
    return {
        "charact": version("charact"), "torch": str(torch.__version__), "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(), "num_threads": torch.get_num_threads(),
        "onednn": torch.backends.mkldnn.enabled,
        "float32": float32_precisions(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


@cache
def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    lines = re.findall(r"^(?:vendor_id|cpu family|model|model name|cache size|flags|Features)\s*:.*$",
                       text.partition("\n\n")[0], re.MULTILINE)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _run(calls: Sequence[OperatorCall], reasons: dict[OperatorCall, str]) -> dict[OperatorCall, CallMemory]:
    if torch._C._autograd._profiler_enabled():
        raise UserError("PyTorch's profiler is active, and there is only one: estimate memory outside of it")
    outputs: dict[int, tuple[int, ...]] = {}
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        start_memory_events(operators=False)
        try:
            for number, call in enumerate(calls):
                try:
                    outputs[number] = _run_marked(call, f"{_MARK}{number}")
                except (RuntimeError, MemoryError, TypeError, ValueError, IndexError) as error:
                    dtypes = {layout.dtype for layout in call.layouts()}
                    precision = next((_PRECISIONS[dtype] for dtype in _PRECISIONS if dtype in dtypes), None)
                    if missing := missing_kernel(str(error), precision):
                        raise UserError(missing) from error
                    reasons[call] = f"{call.operator} alone fails: {one_line(error)}"
        finally:
            results = stop_memory_events()
    peaks = _peaks(results)
    return {calls[number]: CallMemory(peaks[number], sizes) for number, sizes in outputs.items()}


def _run_marked(call: OperatorCall, mark: str) -> tuple[int, ...]:
    """Run a call in an annotation; return the bytes of each new storage that it returns."""
    args, kwargs = call.arguments()
    if call.operator is torch.ops.aten.mkldnn_rnn_layer_backward.default:
        # Fake tensors do not have the size of the workspace that the forward pass makes.
        x, *weights, hidden, cell = args[:7]
        reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first = args[13:22]
        with torch.enable_grad():
            *_, args[-1] = torch.ops.aten.mkldnn_rnn_layer.default(
                x, *weights, hidden, cell, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases,
                bidirectional, batch_first, train)
    given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    with torch.set_grad_enabled(call.grad_enabled), record_function(mark):
        outputs = call.operator(*args, **kwargs)
    storages = {storage._cdata: storage.nbytes() for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)
                for part in dense_parts(leaf) if (storage := part.untyped_storage())._cdata not in given}
    return tuple(storages.values())


def _peaks(results: Any) -> dict[int, int]:
    """Return the peak of the bytes allocated inside each annotation."""
    allocations: list[tuple[int, int]] = []
    marks: list[tuple[int, int, int]] = []

    def visit(events: Sequence[Any]) -> None:
        for event in events:
            if event.name == "[memory]":
                allocations.append((event.start_time_ns, event.extra_fields.alloc_size))
            elif event.name.startswith(_MARK):
                marks.append((event.start_time_ns, event.end_time_ns, int(event.name.removeprefix(_MARK))))
            visit(event.children)

    visit(results.experimental_event_tree())
    allocations.sort(key=itemgetter(0))
    return {number: max(accumulate(
        (num_bytes for time_ns, num_bytes in allocations if start_ns <= time_ns <= end_ns), initial=0))
        for start_ns, end_ns, number in marks}
