"""Buffer of a watched program's events that are not spans, until they are written as notes. No torch in here."""

import contextlib
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

from charact.measure.script.program.frozen_models import FrozenModels

MAX_EVENTS = 10_000
"""Largest number of events of a kind that are recorded."""
MAX_LOADERS = 100
_MIN_COLLECTION_NS = 1_000_000
MAX_TENSORS = 32
"""Largest number of tensors whose shapes are compared in a call of a model."""
_FEWEST_DECODED = 4
"""Number of calls with one token each, after an encoder's, after which a model decodes."""
_FEWEST_GROWN = 8
"""Number of calls in a row, each with one token more, after which a model generates without a cache."""
_LARGEST_POSITION = 2**31
INTERVAL_NS, _LONG_INTERVAL_NS = 20_000_000, 100_000_000
"""Shortest time between two samples of the program's own memory: the first ones, and later. One takes some 70 µs."""
_NUM_DENSE = 200
"""Number of these first samples."""
_WORKERS_INTERVAL_NS = 100_000_000
"""Shortest time between two samples of the workers' memory."""
_COST_FACTOR, _FIRST_COST_FACTOR, _NUM_FIRST = 100, 20, 20
"""Time between two samples of the workers' memory, in times of the processor time of one; the same for the first ones,
and their number."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MOST_BYTES = 4096
"""Largest number of bytes that are read of a file."""


class TokenInput(NamedTuple):
    """Size of the tokens that a model is called with: rows, and their length.

    `keeps`: the call has further arguments that may be a state, such as a cache; masks and others of the tokens' own
    size are none. `reach`: tokens of a row so far, according to a mask, to a number that is the position of the first
    token, or to a cache that the call before had, too; `length` without these.
    """

    rows: int
    length: int
    keeps: bool
    reach: int

    def is_longer_by_one(self, before: "TokenInput") -> bool:
        """Return whether each row has one token more than those of another call."""
        return (self.rows, self.length) == (before.rows, before.length + 1)


class ProgramEvents:
    """Buffer of changed input shapes, starts of loaders, garbage collections and other events.

    The methods run inside the program's iterations, and take a few microseconds.
    """

    def __init__(self) -> None:
        self.tensor_class: type[Any] | tuple[()] = ()
        """Class of tensors; none until PyTorch is imported."""
        self.index_types: tuple[Any, ...] = ()
        """Types of tensors of tokens."""
        self.any_optimizer = False
        """Whether the program has created an optimizer."""
        self.batch_loader = 0
        """Number of the loader of the batch that was fetched since the latest step of an optimizer; 0 without one."""
        self._training_loaders: set[int] = set()
        """Loaders of batches that were followed by an optimizer's step."""
        self.memory = MemorySamples()
        self.graph_place: dict[str, Any] | None = None
        """File and line of the first backward with `create_graph=True`."""
        self._rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        """Events by the kind of their note."""
        self._numbers: defaultdict[str, int] = defaultdict(int)
        """Numbers of all events so far. A Counter has a frame in Python, which the program's compiler would count."""
        self._last_shapes: dict[int, list[Any]] = {}
        """Shapes of the inputs of each model's latest call."""
        self.generating: set[int] = set()
        """Models that have read a prompt, themselves or by an encoder, and then one token a call; or in each call one
        token more."""
        self._token_inputs: dict[int, TokenInput] = {}
        """Tokens of each model's latest call."""
        self._single_tokens: dict[int, Any] = {}
        """Their shapes, of models that were called with one token of each request."""
        self._caches: dict[int, weakref.ref[Any] | None] = {}
        """Their caches, in Transformers."""
        self._num_grown: defaultdict[int, int] = defaultdict(int)
        """Number of each model's latest calls in a row with one token more than the one before."""
        self.num_single: defaultdict[int, int] = defaultdict(int)
        """Number of each model's calls with one token and a state since the program's iteration began."""
        self._frozen = FrozenModels()
        self._loaders: list[dict[str, Any]] = []
        self._collection_ns = 0
        self._num_backwards = self._num_anomalous = self._num_noted = 0

    def inputs(self, owner: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the shapes of a model's input tensors if they differ from those of its last call.

        In a training, the rows of the inputs of frozen models are compared, too.
        """
        try:
            tensor = self.tensor_class
            if len(args) == 1 and type(args[0]) is tensor and not kwargs:  # most calls; three times as fast
                tensors, shapes = args, [args[0].shape]
            else:
                tensors = self._tensors_of(args, kwargs)
                shapes = [each.shape if type(each) is tensor else _concrete(each.shape) for each in tensors]
            if self.any_optimizer:
                self._frozen.call(owner, module, tensors)
            is_new = bool(shapes) and self._last_shapes.get(owner) != shapes
            if is_new or (owner not in self._single_tokens and kwargs.get("past_key_values") is not None):
                self._tokens(owner, args, kwargs)  # chunks of a prompt may have equal shapes
            if not is_new:
                return
        except Exception:  # such as a nested tensor, which has no sizes
            return
        if self._add("input shapes", perf_counter_ns(), owner, shapes):
            self._last_shapes[owner] = shapes

    @property
    def trains_batch(self) -> bool:
        """Whether what follows may be part of the training of a batch, such as a generation from its prompts."""
        return self.batch_loader in self._training_loaders

    def step(self) -> None:
        """Notice an optimizer's step."""
        if self.batch_loader:
            self._training_loaders.add(self.batch_loader)
            self.batch_loader = 0

    def begins_prompt(self, owner: int) -> bool:
        """Return whether a model generates and its latest call read prompts, rather than decoded."""
        return owner in self.generating and self._token_inputs[owner].length > 1 and not self._num_grown[owner]

    def follow(self, owner: int) -> None:
        """Notice a forward in an iteration of inference that another model began, such as a decoder's encoder."""
        if owner in self._single_tokens and owner not in self.generating and self._token_inputs[owner].keeps:
            self.num_single[owner] += 1
            if self.num_single[owner] > _FEWEST_DECODED:
                self.generating.add(owner)

    def _tokens(self, owner: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the size of a model's input tokens if it differs from that of the last call."""
        tensor, types = self.tensor_class, self.index_types
        first: Any = args[0] if args else kwargs.get("input_ids", kwargs.get("decoder_input_ids"))
        if type(first) is tensor and self._single_tokens.get(owner) == first.shape:
            return  # nearly all calls of a generation
        tokens = next((each for name, each in _named(args, kwargs) if isinstance(each, tensor) and each.dim() == 2
                       and each.dtype in types and _may_be_tokens(name)), None)
        if tokens is None:
            return
        last, new = self._token_inputs.get(owner), _token_input(tokens, _named(args, kwargs), tensor)
        cache, seen = kwargs.get("past_key_values"), self._caches.get(owner)
        if last is not None and cache is not None and seen is not None and seen() is cache:
            new = new._replace(reach=max(new.reach, last.reach + new.length))
        self._caches[owner] = weakref.ref(cache) if hasattr(cache, "__weakref__") else None
        if new.length == 1 and tokens is first:
            self._single_tokens[owner] = tokens.shape
        else:
            self._single_tokens.pop(owner, None)
        if new == last or (last is not None and new.length == 1 == last.length and new.rows == last.rows):
            return
        self._token_inputs[owner] = new
        if new.length == 1 and new.keeps and kwargs.get("encoder_outputs") is not None:
            self.generating.add(owner)
        if last is not None:
            self._num_grown[owner] = self._num_grown[owner] + 1 if new.is_longer_by_one(last) else 0
            if (new.length == 1 < last.length and new.keeps) or self._num_grown[owner] >= _FEWEST_GROWN:
                self.generating.add(owner)
        self._add("token inputs", perf_counter_ns(), owner, *new)

    def backward(self, is_anomalous: bool) -> None:
        """Count a backward, and whether it runs under anomaly detection."""
        self._num_backwards += 1
        self._num_anomalous += is_anomalous

    def collection(self, phase: str, _: dict[str, Any]) -> None:
        """Record a long garbage collection. `gc.callbacks` call this at the start and the end of each collection."""
        now_ns = perf_counter_ns()
        if phase == "start":
            self._collection_ns = now_ns
        elif now_ns - self._collection_ns >= _MIN_COLLECTION_NS and self._collection_ns:
            self._add("collections", self._collection_ns, now_ns)

    def loader(self, number: int, settings: dict[str, Any]) -> None:
        """Record the settings of a loader."""
        if number <= MAX_LOADERS:
            self._loaders.append({"note": "loader", "loader": number, "settings": settings})

    def epoch(self, loader: int, begin_ns: int, ready_ns: int, owner: int, fetch_ns: int, end_ns: int) -> None:
        """Record the start of a loader."""
        self._add("epochs", loader, begin_ns, ready_ns, owner, fetch_ns, end_ns)

    def notes(self, *, last: bool = False) -> list[dict[str, Any]]:
        """Return the events since the last call as notes; `last` if the program ends.

        Before, the number of backwards is returned only the first time, or if any ran under anomaly detection.
        """
        notes, self._loaders = self._loaders, []
        notes += [{"note": kind, "rows": rows} for kind, rows in self._rows.items()]
        self._rows = defaultdict(list)
        notes += self.memory.take()
        if self._num_backwards > self._num_noted and (last or self._num_anomalous or not self._num_noted):
            notes.append({"note": "backwards", "total": self._num_backwards, "anomalous": self._num_anomalous,
                          "create_graph": self.graph_place})
            self._num_noted = self._num_backwards
        if last and (frozen := self._frozen.rows()):
            notes.append({"note": "frozen models", "rows": frozen})
        return notes

    def _add(self, kind: str, *row: Any) -> bool:
        """Record an event unless there are too many of its kind; return whether it is recorded."""
        self._numbers[kind] += 1
        if self._numbers[kind] > MAX_EVENTS:
            return False
        self._rows[kind].append(row)
        return True

    def _tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the tensors among arguments, including those in lists, tuples and dictionaries."""
        tensor, tensors = self.tensor_class, list[Any]()
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple, dict)):
                inner = value.values() if isinstance(value, dict) else value
                tensors += [each for each in list(inner)[:MAX_TENSORS] if isinstance(each, tensor)]
        return tuple(tensors[:MAX_TENSORS])


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments with their names, which are empty for those without."""
    yield from (("", each) for each in args)
    yield from kwargs.items()


def _may_be_tokens(name: str) -> bool:
    """Return whether an argument may be tokens by its name, rather than a mask, types of segments, or positions."""
    name = name.lower()
    return not any(part in name for part in ("mask", "type", "segment", "position"))


def _token_input(tokens: Any, arguments: Iterable[tuple[str, Any]], tensor: Any) -> TokenInput:
    rows, length = tokens.shape
    reach, keeps = length, False
    for name, value in arguments:
        if value is None or value is tokens or isinstance(value, (bool, str)):
            continue
        if isinstance(value, tensor):
            if value.shape == tokens.shape:
                continue
            if value.dim() == 2 and "mask" in name:
                reach = max(reach, value.shape[1])
        elif isinstance(value, int):
            if name and "pos" not in name:  # such as a flag
                continue
            reach = max(reach, min(value, _LARGEST_POSITION) + length)
        keeps = True
    return TokenInput(rows, length, keeps, reach)


def _concrete(shape: Any) -> Any:
    """Return a shape; raise if a length is symbolic: during an export, comparing it would fix its value."""
    if any(type(length) is not int for length in shape):
        raise ValueError("symbolic shape")
    return shape


class MemorySamples:
    """Buffer of samples of the program's and its workers' memory, until they are written as notes.

    A sample of the program has its resident set and the bytes in the CUDA allocator; one of the workers has the memory
    that they do not share.
    """

    def __init__(self) -> None:
        self.allocated_bytes: Callable[[], int] | None = None
        """Returns the bytes in the allocator of the program's device; None on a CPU."""
        self._due_ns = self._num_samples = 0
        self._program: list[tuple[int, int, int | None]] = []
        self._workers: list[tuple[int, int]] = []
        self._worker_processes: set[int] = set()
        self._workers_due_ns = self._num_workers_samples = 0

    def sample(self, now_ns: int) -> None:
        """Sample the program's memory, unless it was sampled shortly before."""
        if now_ns < self._due_ns:
            return
        self._num_samples += 1
        self._due_ns = now_ns + (INTERVAL_NS if self._num_samples < _NUM_DENSE else _LONG_INTERVAL_NS)
        rss, allocated = self.now_bytes()
        if rss is not None:
            self._program.append((now_ns, rss, allocated))

    def now_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes of the resident set and in the allocator of the device now; None if not known."""
        fields = _read("/proc/self/statm").split()
        allocated = None
        if self.allocated_bytes is not None:
            with contextlib.suppress(Exception):  # no error of the device may reach the program here
                allocated = self.allocated_bytes()
        return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else None, allocated

    def stop(self) -> None:
        """Take no further samples of the program's memory."""
        self._due_ns = sys.maxsize

    def watch_workers(self, processes: Iterable[int]) -> None:
        """Add processes whose memory is sampled until they end."""
        self._worker_processes.update(processes)

    def sample_workers(self) -> bool:
        """Sample the memory that the workers share with no other process, and return True, unless it is too early.

        The kernel walks all pages of a process for it, some milliseconds, so samples take 1 % of a core at most; the
        first 20 take 5 %. Another thread may call this.
        """
        if not self._worker_processes or perf_counter_ns() < self._workers_due_ns:
            return False
        begin_ns = thread_time_ns()
        total = 0
        for process in list(self._worker_processes):
            lines = _read(f"/proc/{process}/smaps_rollup").splitlines()
            sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_")]
            total += sum(sizes)
            if not sizes:  # it has ended, or must not be read
                self._worker_processes.discard(process)
        now_ns = perf_counter_ns()
        if self._worker_processes:
            self._workers.append((now_ns, total))
        self._num_workers_samples += 1
        factor = _FIRST_COST_FACTOR if self._num_workers_samples <= _NUM_FIRST else _COST_FACTOR
        self._workers_due_ns = now_ns + max(_WORKERS_INTERVAL_NS, factor * (thread_time_ns() - begin_ns))
        return True

    def take(self) -> list[dict[str, Any]]:
        """Return the samples since the last call as notes."""
        (program, self._program), (workers, self._workers) = (self._program, []), (self._workers, [])
        return [{"note": name, "rows": rows} for name, rows in (("memory", program), ("workers' memory", workers))
                if rows]


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _MOST_BYTES)
        finally:
            os.close(file)
    return b""
