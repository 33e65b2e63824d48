"""Filter of a trace's events: operators, annotations, launches and device events.

Traces are untrusted. Impossible values are dropped and counted, and the memory for an event does not depend on its
other content.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from charact.core.errors import UserError
from charact.core.trace_marks import LAYER_PREFIX, PHASE_PREFIX
from charact.traces.collective_names import TYPE_BYTES, operation_name
from charact.traces.events import (
    FORWARDS,
    LOADER,
    MAX_NAME_LENGTH,
    OPTIMIZER,
    STEP,
    Allocated,
    Arguments,
    DeviceEvent,
    Dropped,
    Event,
    Exchange,
    Geometry,
    Launch,
    Mark,
    Operator,
    Thread,
    TraceEvents,
    clean,
)
from charact.traces.named_phases import phase_of_name
from charact.traces.serving.step_names import FRAME_ENDS, is_of_serving

MAX_STORED_EVENTS = 10_000_000
MAX_EMPTY_EVENTS = 1_000_000
"""Limit of events without a name or a time; a trace of torch.profiler has a few at most."""
_MAX_TEXT_BYTES = 256 << 20
_TEXT_BYTES = 250
"""Memory of each distinct text in addition to its characters."""
_WARPS_OF_NONE = 0.5
"""Fewest warps for which an occupancy of 0 is real; Kineto also reports 0 if it is unknown."""
_LATEST_US = 1e16
"""Largest plausible timestamp in microseconds: 300 years."""
_LONGEST_US = 3.2e13
"""Longest plausible event in microseconds: a year."""
_REGISTERS = range((1 << 10) + 1)
"""Registers per thread: 255 on NVIDIA's devices, 512 on AMD's."""
_SHARED_BYTES = range((16 << 20) + 1)
"""Shared memory of a block: 227 KiB on an H100."""
_ALLOCATED_BYTES = range((1 << 50) + 1)
_GRID, _BLOCK = range(1 << 32), range((1 << 12) + 1)
"""Blocks of a grid and threads of a block in one dimension; CUDA allows 2^31 - 1 and 1,024."""
_SIZES = range(1 << 63)
_NUM_ELEMENTS = range(1 << 49)
_GROUP_SIZES = range(1, 1 << 24)
_IMPOSSIBLE = "values that no device can have"
_NO_TIME = Dropped("timing", "events", "no end, an end before the start, or an impossible time")
_MODULE = "nn.Module: "
_NOT_WORK = frozenset({
    "", "None", "Trace", "Traces", "__metadata", "ac2g", "async_cpu_to_gpu", "async_gpu", "cpu_instant_event",
    "cuda_sync", "external_correlation", "forward_backward", "fwdbwd", "gpu_user_annotation", "overhead",
    "python_function", "xpu_sync",
})  # fmt: skip
"""Categories of events that are no work of a device and that no table needs; all others are counted."""
_MAX_CATEGORIES = 20
_OTHER_CATEGORIES = "others"
_MARKS = (STEP, OPTIMIZER, LOADER, PHASE_PREFIX, LAYER_PREFIX)
_CALLS = (": backward", *FRAME_ENDS)
_BACKWARD_CALL = re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$")
_COLLECTIVE = re.compile(r"^(nccl|rccl|gloo|c10d|mpi|ucc):")


class EventFilter:
    """Selects the needed events of a trace."""

    def __init__(self) -> None:
        self.events = TraceEvents()
        self._num_stored = self._num_read = self._num_empty = 0
        self._names: dict[str, str] = {}
        self._texts: dict[tuple[bytes, Callable[[Any], str | None]], str | None] = {}
        self._threads: dict[Thread, Thread] = {}
        self._text_bytes = 0
        self._take: dict[str, Callable[[Event, int, int, Arguments], None]] = {
            "cpu_op": self._operator, "user_annotation": self._annotation, "python_function": self._call,
            "cuda_runtime": self._launch, "cuda_driver": self._launch, "kernel": self._on_device,
            "gpu_memcpy": self._on_device, "gpu_memset": self._on_device, "cpu_instant_event": self._instant,
            # names in older profilers and for other devices
            "Operator": self._operator, "Runtime": self._launch, "hip_runtime": self._launch,
            "xpu_runtime": self._launch, "xpu_driver": self._launch, "privateuse1_runtime": self._launch,
            "privateuse1_driver": self._launch, "Kernel": self._on_device,
            "Memcpy": self._on_device, "Memset": self._on_device, "nvtx": self._annotation, "NVTX": self._annotation,
        }  # fmt: skip

    def add(self, events: Sequence[Event]) -> None:
        """Add more events."""
        self._num_read += len(events)
        for event in events:
            take = self._take.get(event.cat)
            if take is None or (event.cat == "python_function" and not event.name.startswith(_MODULE)
                                and not event.name.endswith(_CALLS)):  # the majority in a trace with stacks
                if event.ts is None or not event.name:
                    self._num_empty += 1
                elif take is None and event.cat not in _NOT_WORK and event.dur is not None:
                    self._count_unread(event.cat)
                continue
            start_us, length_us = event.ts, event.dur
            if length_us is None and event.name == "[memory]":
                length_us = 0.0
            if (start_us is None or length_us is None or not 0 <= length_us < _LONGEST_US
                    or not -_LATEST_US < start_us < _LATEST_US):
                self._drop(_NO_TIME)
                self._num_empty += start_us is None
                continue
            start_ns = round(start_us * 1000)
            take(event, start_ns, start_ns + round(length_us * 1000), event.args or _NO_ARGUMENTS)
        if self._num_stored > MAX_STORED_EVENTS or self._text_bytes > _MAX_TEXT_BYTES:
            raise UserError(f"the trace has more than {MAX_STORED_EVENTS:,} events or {_MAX_TEXT_BYTES >> 20} MB of "
                            "names to keep: profile fewer iterations")
        if self._num_empty > max(MAX_EMPTY_EVENTS, self._num_read / 2):
            raise UserError(f"{self._num_empty:,} of the trace’s first {self._num_read:,} events have no name or no "
                            "time: name a trace of torch.profiler")

    def _count_unread(self, category: str) -> None:
        unread = self.events.unread
        known = category in unread or len(unread) < _MAX_CATEGORIES
        unread[self._name(category) if known else _OTHER_CATEGORIES] += 1

    def _operator(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        if event.name.startswith(_MARKS) or ("::" not in event.name and (
                phase_of_name(event.name) is not None or is_of_serving(event.name))):
            self._annotation(event, start_ns, end_ns, args)
            return
        external_id = _external_id(args)
        sequence = None if args.sequence is None or args.sequence < 0 else args.sequence
        shapes = self._parsed(bytes(args.shapes) or bytes(args.old_shapes), _shapes_of, "operators", "input shapes")
        both = b"[%b,%b]" % (args.types, args.shapes) if args.types and args.shapes else b""
        dtype = self._parsed(both, _dtype_of, "operators", "input types") or None
        operator = Operator(self._thread(event), start_ns, end_ns, self._name(event.name), sequence, shapes or "[]",
                            dtype=dtype)
        self.events.operators.append(operator)
        self._num_stored += 1
        if external_id is not None:
            self.events.by_id[external_id] = operator
            if args.collective is not None and (exchange := self._exchange(args)) is not None:
                self.events.exchanges[external_id] = exchange

    def _annotation(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        if _COLLECTIVE.match(event.name):
            self._operator(event, start_ns, end_ns, args)
        elif event.name.startswith((*_MARKS, *FORWARDS)):
            self._mark(self.events.forwards if event.name.startswith(FORWARDS) else self.events.marks, event,
                       start_ns, end_ns)
        elif phase_of_name(event.name) is not None:
            self._mark(self.events.named, event, start_ns, end_ns)
        elif is_of_serving(event.name):
            self._mark(self.events.serving, event, start_ns, end_ns)

    def _call(self, event: Event, start_ns: int, end_ns: int, _: Arguments) -> None:
        if event.name.startswith(_MODULE):
            self._mark(self.events.modules, event, start_ns, end_ns)
        elif _BACKWARD_CALL.search(event.name):
            self._mark(self.events.backwards, event, start_ns, end_ns)
        elif is_of_serving(event.name):
            self._mark(self.events.serving, event, start_ns, end_ns)

    def _mark(self, marks: list[Mark], event: Event, start_ns: int, end_ns: int) -> None:
        name = self._name(event.name.removeprefix(_MODULE))
        marks.append(Mark(self._thread(event), start_ns, end_ns, name))
        self._num_stored += 1

    def _launch(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        name = self._name(event.name)
        if args.correlation is None:
            self.events.unlinked[name] += 1
            return
        if "Memcpy" in name:
            self.events.copy_ends[args.correlation] = end_ns
        self.events.launches[args.correlation] = Launch(self._thread(event), start_ns, _external_id(args),
                                                        self._geometry(args), name)
        self._num_stored += 1

    def _on_device(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        device = event.pid if args.device is None else args.device
        stream = event.tid if args.stream is None else args.stream
        self.events.device.append(DeviceEvent(
            start_ns, end_ns, self._name(event.name), self._name(event.cat.lower()), self._name(str(device)),
            self._name(str(stream)), _external_id(args), args.correlation, self._geometry(args),
            exchange=None if args.collective is None else self._exchange(args)))  # fmt: skip
        self._num_stored += 1

    def _instant(self, event: Event, start_ns: int, _: int, args: Arguments) -> None:
        if event.name == "[memory]" and args.allocated is not None and args.device_type is not None:
            if args.allocated not in _ALLOCATED_BYTES:
                self._drop(Dropped("memory", "amounts of allocated memory", _IMPOSSIBLE))
                return
            self.events.allocated.append(Allocated(start_ns, args.allocated, args.device_type))
            self._num_stored += 1

    def _exchange(self, args: Arguments) -> Exchange | None:
        """Return the collective of an event; None if it is a wait."""
        if not isinstance(args.collective, str) or args.collective == "wait":
            return None
        in_all = args.group_description == "default_pg"
        group = args.group if args.group_description in (None, "", "undefined") else args.group_description
        sizes = [number for number in (args.num_in, args.num_out) if type(number) is int and number in _SIZES]
        size_bytes = TYPE_BYTES.get(args.data_type) if isinstance(args.data_type, str) else None
        return Exchange(
            self._name(operation_name(args.collective)),
            "default" if in_all else self._name(group) if isinstance(group, str) else None,
            args.group_size if type(args.group_size) is int and args.group_size in _GROUP_SIZES else None,
            max(sizes) * size_bytes if sizes and size_bytes and max(sizes) in _NUM_ELEMENTS else None,
            args.collective_sequence if type(args.collective_sequence) is int
            and args.collective_sequence in _NUM_ELEMENTS else None)

    def _geometry(self, args: Arguments) -> Geometry:
        percent, registers, shared_bytes = args.occupancy_percent, args.registers, args.shared_memory
        if percent == 0 and (args.warps_per_sm is None or args.warps_per_sm > _WARPS_OF_NONE):
            percent = None
        if percent is not None and not 0 <= percent <= 100:
            percent = None
            self._drop(Dropped("kernels", "occupancies", "not from 0 to 100 %"))
        if registers is not None and registers not in _REGISTERS:
            registers = None
            self._drop(Dropped("kernels", "numbers of registers", _IMPOSSIBLE))
        if shared_bytes is not None and shared_bytes not in _SHARED_BYTES:
            shared_bytes = None
            self._drop(Dropped("kernels", "amounts of shared memory", _IMPOSSIBLE))
        return (self._parsed(bytes(args.grid), _grid_of, "kernels", "grids"),
                self._parsed(bytes(args.block), _block_of, "kernels", "blocks"), registers, shared_bytes,
                None if percent is None else percent / 100)

    def _drop(self, dropped: Dropped) -> None:
        self.events.dropped[dropped] += 1

    def _thread(self, event: Event) -> Thread:
        thread = event.pid, event.tid
        known = self._threads.get(thread)
        if known is None:
            process, number = (self._name(part) if isinstance(part, str) else part for part in thread)
            known = self._threads[thread] = process, number
            self._text_bytes += _TEXT_BYTES + sum(4 * len(part) for part in thread if isinstance(part, str))
        return known

    def _name(self, name: str) -> str:
        """Return one shared text for all equal ones; very long ones are cut."""
        if len(name) > MAX_NAME_LENGTH:
            name = name[:MAX_NAME_LENGTH + 1]
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = clean(name)
            self._text_bytes += _TEXT_BYTES + 8 * len(known)
        return known

    def _parsed(self, text: bytes, words: Callable[[Any], str | None], of_pass: str, what: str) -> str | None:
        if not text:
            return None
        try:
            known = self._texts[text, words]
        except KeyError:
            try:
                known = words(msgspec.json.decode(text))
            except msgspec.DecodeError:  # a number beyond the range of floats
                known = None
            self._texts[text, words] = known
            self._text_bytes += _TEXT_BYTES + 2 * len(text)
        if known is None and text != b"null":
            self._drop(Dropped(of_pass, what, _IMPOSSIBLE))
        return known


_NO_ARGUMENTS = Arguments()
_FLOATING_TYPES = {"double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
"""PyTorch's names of types, by those of C++ in a trace."""


def _external_id(args: Arguments) -> int | None:
    return args.old_external_id if args.external_id is None else args.external_id


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shapes_of(value: Any) -> str | None:
    """Return shapes of tensors as JSON, a list of tensors by its length; None if a size is impossible."""
    shapes = [shape for shape in value if isinstance(shape, list) and shape] if isinstance(value, list) else []
    if not all(isinstance(shape[0], list) or _are_sizes(shape, _SIZES) for shape in shapes):
        return None
    return _compact([f"{len(shape)}_tensors" if isinstance(shape[0], list) else shape for shape in shapes])


def _dtype_of(value: Any) -> str:
    """Return PyTorch's name of the first floating-point type of a tensor that is no single number; "" for none."""
    types, shapes = value
    if not isinstance(types, list) or not isinstance(shapes, list):
        return ""
    names = (_FLOATING_TYPES.get(name, "") for name, shape in zip(types, shapes, strict=False)
             if shape and isinstance(name, str))
    return next(filter(None, names), "")


def _dimensions_of(value: Any, possible: range) -> str | None:
    return _compact(value) if _are_sizes(value, possible) and len(value) <= 3 else None


_grid_of, _block_of = partial(_dimensions_of, possible=_GRID), partial(_dimensions_of, possible=_BLOCK)


def _are_sizes(value: Any, possible: range) -> bool:
    return isinstance(value, list) and all(type(size) is int and size in possible for size in value)
