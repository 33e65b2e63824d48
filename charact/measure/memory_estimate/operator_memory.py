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
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

from charact.core.errors import UserError
from charact.core.files import user_cache
from charact.execution.case_outcome import missing_kernel, one_line
from charact.execution.out_of_memory import free_host_bytes, host_memory_guard
from charact.measure.memory_estimate.operator_calls import OperatorCall, float32_precisions
from charact.measure.passes.memory_pass import start_memory_events, stop_memory_events

_MARK = "charact_operator#"
"""Prefix of profiler annotations around calls; the call's index follows."""
_FREE_SHARE = 0.5
"""Maximum share of the free memory for one call."""
_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Environment variables by which oneDNN chooses algorithms."""


@dataclass(frozen=True)
class CallMemory:
    """Memory that a call allocated."""

    peak_bytes: int
    """Peak of what it allocated, its outputs included."""
    output_bytes: tuple[int, ...]
    """Bytes of each new storage that it returned, in order."""


class OperatorMemory:
    """Measured memory of calls, in this process and in the user's cache."""

    def __init__(self) -> None:
        self._known: dict[OperatorCall, CallMemory] = {}
        self._reasons: dict[OperatorCall, str] = {}
        """Why calls could not be measured at the last try."""
        self._surroundings: str | None = None
        self._cache = _Cache(None)

    def cached(self, calls: Collection[OperatorCall]) -> dict[OperatorCall, CallMemory]:
        """Return the memory of the calls that were measured before, from this process or the cache."""
        self._follow_surroundings()
        missing = [call for call in calls if call not in self._known]
        self._known |= self._cache.read(missing)
        return {call: self._known[call] for call in calls if call in self._known}

    def reason(self, call: OperatorCall) -> str | None:
        """Return why a call could not be measured at the last try; None if it was, or was not tried."""
        return self._reasons.get(call)

    def measure(self, calls: Sequence[OperatorCall], expected_bytes: Callable[[OperatorCall], float]) -> None:
        """Measure the calls without a result; calls that do not fit or fail get a `reason` instead.

        Args:
            calls: distinct calls.
            expected_bytes: estimate of the bytes that a call allocates, to check whether it fits in the free memory.
        """
        known, free = self.cached(calls), free_host_bytes()
        chosen = []
        for call in calls:
            need = call.input_bytes + expected_bytes(call)
            if call not in known and need > _FREE_SHARE * free:
                self._reasons[call] = (f"{call.operator} alone needs about {_mebibytes(need)}, and half of the free "
                                       f"memory is {_mebibytes(_FREE_SHARE * free)}")
            elif call not in known:
                chosen.append(call)
        if chosen:
            with host_memory_guard():
                measured = _run(chosen, self._reasons)
            self._known |= measured
            self._reasons = {call: reason for call, reason in self._reasons.items() if call not in measured}
            self._cache.write(measured)

    def _follow_surroundings(self) -> None:
        """Discard results if the surroundings have changed."""
        now = json.dumps(surroundings(), sort_keys=True)
        if now != self._surroundings:
            self._surroundings, self._known, self._reasons = now, {}, {}
            self._cache = _Cache(now)


def _mebibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.4g} MiB"


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
    """Return a hash of the processor's model, instructions and cache size."""
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    lines = re.findall(r"^(?:vendor_id|cpu family|model|model name|cache size|flags|Features)\s*:.*$",
                       text.partition("\n\n")[0], re.MULTILINE)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _run(calls: Sequence[OperatorCall], reasons: dict[OperatorCall, str]) -> dict[OperatorCall, CallMemory]:
    """Run calls under the profiler; add those that fail to `reasons`."""
    if torch._C._autograd._profiler_enabled():
        raise UserError("PyTorch's profiler is active, and there is only one: estimate memory outside of it")
    outputs: dict[int, tuple[int, ...]] = {}
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        start_memory_events(operators=False)
        try:
            for number, call in enumerate(calls):
                try:
                    outputs[number] = _run_one(number, call)
                except (RuntimeError, MemoryError, TypeError, ValueError, IndexError) as error:
                    if missing := missing_kernel(str(error), _precision(call)):
                        raise UserError(missing) from error
                    reasons[call] = f"{call.operator} alone fails: {one_line(error)}"
        finally:
            results = stop_memory_events()
    peaks = _peaks(results)
    return {calls[number]: CallMemory(peaks[number], sizes) for number, sizes in outputs.items()}


def _precision(call: OperatorCall) -> str | None:
    """Return the precision of a call's 16-bit tensors, by the name of its option."""
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return next((names[layout.dtype] for layout in call.layouts() if layout.dtype in names), None)


def _run_one(number: int, call: OperatorCall) -> tuple[int, ...]:
    """Run a call in an annotation; return the bytes of each new storage that it returns."""
    args, kwargs = call.arguments()
    if call.operator is torch.ops.aten.mkldnn_rnn_layer_backward.default:
        args[-1] = _recurrent_workspace(args)
    given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
    with torch.set_grad_enabled(call.grad_enabled), record_function(f"{_MARK}{number}"):
        outputs = call.operator(*args, **kwargs)
    storages = {storage._cdata: storage.nbytes() for tensor in _tensors(outputs)
                if (storage := tensor.untyped_storage())._cdata not in given}
    return tuple(storages.values())


def _recurrent_workspace(args: Sequence[Any]) -> torch.Tensor:
    """Return a recurrent layer's workspace from its forward pass; fake tensors do not have its size."""
    x, *weights, hidden, cell = args[:7]
    reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first = args[13:22]
    with torch.enable_grad():
        *_, workspace = torch.ops.aten.mkldnn_rnn_layer.default(
            x, *weights, hidden, cell, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional,
            batch_first, train)
    return workspace  # type: ignore[no-any-return]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


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
    marks.sort()
    held: dict[int, int] = defaultdict(int)
    peaks = {number: 0 for _, _, number in marks}
    for time_ns, num_bytes in sorted(allocations, key=lambda allocation: allocation[0]):
        index = bisect_right(marks, time_ns, key=lambda mark: mark[0]) - 1
        if index >= 0 and time_ns <= marks[index][1]:
            number = marks[index][2]
            held[number] += num_bytes
            peaks[number] = max(peaks[number], held[number])
    return peaks


class _Cache:
    """Measured calls in the user's cache: a database for each kind of surroundings.

    Without a usable cache (no home directory, no permission, a full disk, a damaged file), calls are measured again.

    Args:
        surroundings: what the memory of a call depends on, besides the call; None for no cache.
    """

    def __init__(self, surroundings: str | None) -> None:
        self._path: Path | None = None
        if surroundings is not None:
            with contextlib.suppress(RuntimeError):  # no home directory
                self._path = user_cache() / "operators" / (hashlib.sha256(surroundings.encode()).hexdigest()[:16]
                                                           + ".sqlite")

    def read(self, calls: Collection[OperatorCall]) -> dict[OperatorCall, CallMemory]:
        """Return the cached calls among `calls`."""
        if self._path is None or not self._path.exists():
            return {}
        digests = {_digest(call): call for call in calls}
        rows = self._execute("SELECT call, peak_bytes, output_bytes FROM calls WHERE call IN "
                             "(SELECT value FROM json_each(?))", [[json.dumps(list(digests))]])
        return {digests[digest]: CallMemory(peak_bytes, tuple(map(int, sizes.split()))) for digest, peak_bytes, sizes
                in rows if all(map(str.isdigit, sizes.split()))}

    def write(self, found: dict[OperatorCall, CallMemory]) -> None:
        """Add calls to the cache."""
        rows = [[_digest(call), memory.peak_bytes, " ".join(map(str, memory.output_bytes))]
                for call, memory in found.items()]
        self._execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", rows)

    def _execute(self, statement: str, rows: list[list[Any]]) -> list[Any]:
        """Execute a statement for each row of parameters in one transaction; after an error, stop using the cache."""
        if self._path is None:
            return []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._path, timeout=1)) as database, database:
                database.execute("CREATE TABLE IF NOT EXISTS calls "
                                 "(call TEXT PRIMARY KEY, peak_bytes INTEGER, output_bytes TEXT)")
                return [found for row in rows for found in database.execute(statement, row)]
        except (OSError, sqlite3.OperationalError):  # not writable, locked, or the disk is full
            self._path = None
        except (sqlite3.DatabaseError, ValueError):
            with contextlib.suppress(OSError):
                self._path.unlink()  # damaged
            self._path = None
        return []


def _digest(call: OperatorCall) -> str:
    return hashlib.sha256(call.text.encode()).hexdigest()[:32]
