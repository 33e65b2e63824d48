"""Memory pass: one iteration under the profiler's allocation events; bytes in use over time, by category.

Persistent blocks (weights, optimizer state) are known by identity before the iteration. Input and gradients are found
by the addresses of their tensors after the phase that creates them; other blocks are classified by lifetime.
"""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch._C._autograd import _disable_profiler, _enable_profiler
from torch._C._profiler import RecordScope
from torch.autograd.profiler import profile
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from charact.core.memory_curve import Block, MemoryCurve, Place
from charact.core.trace_marks import RELEASE_PREFIX
from charact.measure.passes.event_tree import Allocation, EventTree, read_results
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.resident_memory import resident_peak_bytes
from charact.record.manifest_passes import MemoryPass
from charact.record.schema import MEMORY_CATEGORIES

if TYPE_CHECKING:
    from charact.execution.loop import Loop

CUDA_UNIT_BYTES = 512
"""Granularity of CUDA's allocator in bytes, also in its statistics and in profiler events."""
_SELDOM = ("unsharded_weights", "communication_buffers", "kv_cache")
"""Categories that only a program of several ranks has, or a generation."""
_MADE_IN = {"input": "data", "gradients": "backward", "optimizer_state": "update", "kv_cache": "forward"}
"""Phase in which blocks of a category are allocated, for those found by their address."""


class BlockOwners:
    """Blocks on a device with known owners, at the start of an iteration and after each of its phases.

    Attributes of `carriers` hold tensors between iterations, such as a hidden state; `cache` returns those of a
    generation, such as keys and values. `others`: whether to count all
    other live tensors, such as a copy of the weights, as `unknown`, and the buckets of `DistributedDataParallel`. It
    has no effect on CUDA, whose allocator's statistics include them.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer], carriers: Sequence[Any] = (), *,
                 cache: Callable[[], Sequence[Any]] = tuple, others: bool = False) -> None:
        self._cache = cache
        self.device, self._others = device, others and device.type == "cpu"
        self._models, self._optimizers, self._carriers = models, optimizers, carriers
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._forget()

    def _forget(self) -> None:
        self.before: list[Block] = []
        """Blocks at the start of the iteration; a release mark contains the index in this list."""
        self._old: set[int] = set()
        """Addresses of those blocks that still exist."""
        self.batch: dict[int, int] = {}
        """Bytes of the last batch's blocks by address."""
        self.addresses: dict[str, set[int]] = {category: set() for category in _MADE_IN}
        """Addresses of the iteration's own blocks by category."""

    def is_on_device(self, name: str) -> bool:
        """Return whether a name, such as `cuda:1`, is the device's, or one of its kind if it has no index."""
        return name == str(self.device) or (self.device.index is None and name.partition(":")[0] == self.device.type)

    def begin(self) -> None:
        """Record the blocks that exist before an iteration: of weights, gradients, optimizer state, and others."""
        self._forget()
        weights = [tensor for model in self._models for tensor in (*model.parameters(), *model.buffers())]
        carried = tree_leaves([list(vars(carrier).values()) for carrier in self._carriers])
        for category, tensors in (("weights", weights), ("gradients", self._gradients()),
                                  ("optimizer_state", self._state()), ("kv_cache", self._cache()),
                                  ("activations", carried)):
            for storage in self._storages(tensors):
                self._hold(category, storage)
        if not self._others:
            return
        resident_bytes = psutil.Process().memory_info().rss
        for tensor in [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]:
            with contextlib.suppress(Exception):  # subclasses of others may do anything
                for storage in self._storages([tensor]):
                    if (storage.device.type == self.device.type and storage.data_ptr()
                            and 0 < self._size(storage) <= resident_bytes):  # else it is a mapped file
                        self._hold("unknown", storage)
        if num_bytes := sum(map(_bucket_bytes, self._models)):
            self.before.append(Block(num_bytes, "communication_buffers"))

    def fetched(self, batch: Any) -> None:
        """Record a fetched or moved batch as input."""
        self.batch = self._new(tree_leaves(batch))
        self.addresses["input"].update(self.batch)

    def note(self) -> None:
        """Record new gradients and optimizer state at the end of a phase."""
        self.addresses["gradients"].update(self._new(self._gradients()))
        self.addresses["optimizer_state"].update(self._new(self._state()))
        self.addresses["kv_cache"].update(self._new(self._cache()))

    def end(self) -> None:
        """Stop to record releases at the end of the iteration."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _hold(self, category: str, storage: torch.UntypedStorage) -> None:
        """Record the release of a block by a finalizer: the allocator does not report that of an older block."""
        address = storage.data_ptr()
        if address not in self._old:
            self._finalizers.append(weakref.finalize(storage, self._release, len(self.before), address))
            self._finalizers[-1].atexit = False
            self._old.add(address)
            self.before.append(Block(self._size(storage), category))

    def _release(self, number: int, address: int) -> None:
        with torch.profiler.record_function(f"{RELEASE_PREFIX}{number}"):
            pass
        self._old.discard(address)  # a new block may get the address

    def _new(self, tensors: Iterable[Any]) -> dict[int, int]:
        """Return the bytes of the tensors' blocks by address, without those from before the iteration."""
        return {storage.data_ptr(): self._size(storage) for storage in self._storages(tensors)
                if storage.data_ptr() not in self._old}

    def _gradients(self) -> list[Any]:
        return [parameter.grad for model in self._models for parameter in model.parameters()]

    def _state(self) -> list[Any]:
        return tree_leaves([list(optimizer.state.values()) for optimizer in self._optimizers])

    def _storages(self, tensors: Iterable[Any]) -> list[torch.UntypedStorage]:
        return [part.untyped_storage() for tensor in tensors
                if isinstance(tensor, torch.Tensor) and self.is_on_device(str(tensor.device))
                for part in dense_parts(tensor)]

    def _size(self, storage: torch.UntypedStorage) -> int:
        num_bytes: int = storage.nbytes()
        return -(-num_bytes // CUDA_UNIT_BYTES) * CUDA_UNIT_BYTES if self.device.type == "cuda" else num_bytes


class MemoryProbe:
    """Records the memory of one iteration, between `begin` and `stop`.

    Bytes are those that PyTorch's allocator allocated on one device. Categories:

    - weights: parameters and buffers.
    - gradients, optimizer_state, input (the batch).
    - kv_cache: what a generation keeps from one word to the next.
    - activations: allocated in the forward or loss, and kept longer than the operator that allocated them; also tensors
      that a workload keeps between iterations, such as a hidden state.
    - temporary: other blocks freed by the end of the iteration, inside an operator or gradients of activations.
    - workspaces: what cuBLAS keeps between iterations (CUDA).
    - unknown: all other blocks.

    *Error*: memory that libraries allocate themselves (oneDNN's scratch memory, the CUDA context) is not included. On a
    CPU, neither are blocks of the previous iteration that only the autograd graph still holds. On CUDA, compare the
    peak with the allocator's statistics (fact `allocator_peak_bytes`). Without operators the overhead is small, but
    blocks that the forward allocates and frees inside an operator count as activations. `others`: see `BlockOwners`.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer], carriers: Sequence[Any] = (), *,
                 cache: Callable[[], Sequence[Any]] = tuple, others: bool = False, operators: bool = True) -> None:
        self._device, self._on_cuda = device, device.type == "cuda"
        self._owners = BlockOwners(device, models, optimizers, carriers, cache=cache, others=others)
        self.operators = operators
        self._results: Any = None

    def begin(self) -> None:
        """Start to record an iteration."""
        self._owners.begin()
        self._unknown_bytes = 0
        if self._on_cuda:  # the CPU's allocator has no statistics
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            known_bytes = sum(block.num_bytes for block in self._owners.before)
            self._unknown_bytes = max(0, torch.cuda.memory_allocated(self._device) - known_bytes)
        start_memory_events(operators=self.operators)

    def input(self, batch: Any) -> None:
        """Record a fetched or moved batch as input."""
        self._owners.fetched(batch)

    def phase_ended(self) -> None:
        """Record gradients and optimizer state at the end of a phase."""
        self._owners.note()

    def stop(self) -> None:
        """End the recording after the iteration has ended or failed."""
        self._owners.end()
        self._results = stop_memory_events()

    @property
    def has_stopped(self) -> bool:
        """Whether there are results: the profiler itself may run out of memory."""
        return self._results is not None

    def read(self, *, failed: bool = False) -> tuple[EventTree, MemoryCurve]:
        """Return the events of the iteration, and the memory in use; if it failed, temporary blocks were not freed."""
        tree = read_results(self._results)
        workspaces = min(self._unknown_bytes, released_workspaces(self._device)) if self._on_cuda else 0
        rest = {"workspaces": workspaces, "unknown": self._unknown_bytes - workspaces}
        return tree, curve_of(tree, self._owners, rest, failed=failed)

    def found(self) -> tuple[list[dict[str, Any]], MemoryPass]:
        """Return rows of the table `memory` of the iteration, and facts; only after it ended."""
        _, curve = self.read()
        return curve.rows("measured"), MemoryPass(
            "ok", peak_bytes=curve.peak.total_bytes,
            allocator_peak_bytes=torch.cuda.max_memory_allocated(self._device) if self._on_cuda else None,
            reserved_peak_bytes=torch.cuda.max_memory_reserved(self._device) if self._on_cuda else None,
            process_peak_bytes=resident_peak_bytes())


def start_memory_events(*, operators: bool) -> None:
    """Start PyTorch's profiler with the allocator's events, with annotations, and with or without operators."""
    profiler = profile(profile_memory=True)
    profiler._prepare_trace()  # type: ignore[no-untyped-call]
    config = profiler.config()  # type: ignore[no-untyped-call]
    # The profiler's own start would always record operators.
    scopes = set() if operators else {RecordScope.USER_SCOPE}
    _enable_profiler(config, profiler.kineto_activities, scopes)  # type: ignore[call-arg]


def stop_memory_events() -> Any:
    """Stop the profiler; return Kineto's results."""
    return _disable_profiler()


def released_workspaces(device: torch.device) -> int:
    """Release cuBLAS's workspaces, and return their bytes on a device; cuBLAS allocates them again when it needs them.

    None are released, and the result is 0, if the program has a CUDA graph, whose kernels may use them.
    """
    release = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if release is None or any(issubclass(type(obj), torch.cuda.CUDAGraph) for obj in gc.get_objects()):
        return 0
    torch.cuda.synchronize(device)
    before_bytes = torch.cuda.memory_allocated(device)
    release()
    return before_bytes - torch.cuda.memory_allocated(device)

def curve_of(tree: EventTree, owners: BlockOwners, rest: dict[str, int], *, failed: bool = False) -> MemoryCurve:
    """Return the memory after every change and at every phase's start.

    `rest` has the bytes by category at the iteration's start that belong to no known block. `failed`: whether the
    iteration failed, so that temporary blocks were not freed.
    """
    places = {start_ns: Place(start_ns, phase) for start_ns, _, phase in tree.phases}
    live: dict[int, Block] = {}
    allocated: list[tuple[Allocation, Block]] = []
    for event in tree.allocations:
        if not owners.is_on_device(event.device):
            continue
        place = Place(event.time_ns, tree.phase_at(event.time_ns), event.layer, event.operator)
        if event.num_bytes > 0:
            live[event.address] = Block(event.num_bytes, phase=place.phase, birth=event.time_ns)
            allocated.append((event, live[event.address]))
        elif event.address in live:
            live.pop(event.address).death = event.time_ns
        else:  # the release of an older block
            continue
        places[event.time_ns] = place
    for event, block in allocated:
        block.category = _category(event, block, tree, owners, failed)
    for time_ns, number in tree.releases:
        owners.before[number].death = time_ns
        places.setdefault(time_ns, Place(time_ns, tree.phase_at(time_ns)))
    blocks = [*owners.before, *(Block(num_bytes, category) for category, num_bytes in rest.items()),
              *(block for _, block in allocated)]
    reported = {event.address for event, _ in allocated}
    from_worker_bytes = sum(size for address, size in owners.batch.items() if address not in reported)
    if from_worker_bytes and owners.device.type == "cpu":  # the batch arrived in shared memory
        data_end_ns = next((end_ns for _, end_ns, phase in tree.phases if phase == "data"), 0)
        blocks.append(Block(from_worker_bytes, "input", birth=data_end_ns))
        places.setdefault(data_end_ns, Place(data_end_ns, tree.phase_at(data_end_ns)))
    held = {block.category for block in blocks}
    return MemoryCurve.of(blocks, places.values(), [
        (category, None) for category in MEMORY_CATEGORIES if category in held or category not in _SELDOM])


def _category(event: Allocation, block: Block, tree: EventTree, owners: BlockOwners, failed: bool) -> str:
    phase_end_ns = next((end_ns for start_ns, end_ns, _ in tree.phases if start_ns <= event.time_ns < end_ns), 0)
    if block.death is None or block.death > phase_end_ns:
        for category, addresses in owners.addresses.items():
            if event.address in addresses and block.phase == _MADE_IN[category]:
                return category
    if block.phase in ("forward", "loss", "sample") and (block.death is None or block.death > event.operator_end_ns):
        return "activations"
    return "unknown" if block.death is None and not failed else "temporary"


def _bucket_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of the buckets in which `DistributedDataParallel` reduces gradients, next to the gradients."""
    bytes_of_buckets = 0
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) and not module.gradient_as_bucket_view:
            facts = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            sizes = facts.get("rebuilt_bucket_sizes") or facts.get("bucket_sizes") or ""
            bytes_of_buckets += sum(int(size) for size in str(sizes).split(",") if size.strip())
    return bytes_of_buckets


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors with storage: those inside a sparse tensor or a wrapper (DTensor); none of a lazy one."""
    if is_lazy(tensor):
        return []
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        values = [getattr(tensor, name) for name in names]  # DTensor names its mesh, too
        return [part for value in values if isinstance(value, torch.Tensor) for part in dense_parts(value)]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if tensor.layout == torch.strided else []


def probe_for(loop: "Loop", *, operators: bool = True) -> MemoryProbe:
    """Return a probe of a loop's iterations."""
    return MemoryProbe(loop.case.device, [loop.model], loop.optimizers, [loop.workload], cache=loop.cache,
                       operators=operators)


def run_under(probe: MemoryProbe, loop: "Loop") -> None:
    """Run an iteration and record it with a probe; in a decoding, it is that of the last word."""
    loop.place(1.0)
    # A hook inside a compiled model would break its graph.
    with layer_marks(loop.model) if probe.operators and not loop.case.compiled else contextlib.nullcontext():
        probe.begin()
        try:
            marked_iteration(probe, loop)
        finally:
            probe.stop()


def marked_iteration(probe: MemoryProbe, loop: "Loop") -> None:
    """Run an iteration with annotations of its phases, and report their ends to the probe."""
    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        try:
            with phase_mark(phase):
                yield
            if phase == "data":
                probe.input(loop.batch)
        finally:
            probe.phase_ended()

    loop.iteration(mark)


def memory_pass(loop: "Loop") -> tuple[list[dict[str, Any]], MemoryPass]:
    """Return rows of the table `memory` for one iteration, and facts about the pass; see `MemoryProbe`."""
    probe = probe_for(loop)
    run_under(probe, loop)
    return probe.found()
