"""What of a trace is kept while it is read: operators, marks, launches, and what ran on the device."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from charact.errors import UserError
from charact.mark_names import LAYER_PREFIX, PHASE_PREFIX
from charact.traces.events import (
    FORWARDS,
    LOADER,
    OPTIMIZER,
    STEP,
    Allocated,
    Arguments,
    DeviceEvent,
    Event,
    Geometry,
    Kept,
    Launch,
    Mark,
    Operator,
)

MAX_KEPT_EVENTS = 10_000_000
MAX_NAME_LENGTH = 10_000
_MAX_TEXT_BYTES = 256 << 20
_WARPS_OF_NONE = 0.5
"""Kineto's occupancy is 0 also where it cannot tell: with more warps on each multiprocessor it would round to more."""
_LATEST_US = 1e16
"""A moment in microseconds beyond which none lies: in 300 years."""
_MODULE = "nn.Module: "
_MARKS = (STEP, OPTIMIZER, LOADER, PHASE_PREFIX, LAYER_PREFIX)
_BACKWARD = ": backward"
_BACKWARD_CALL = re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$")
_COLLECTIVE = re.compile(r"^(nccl|rccl|gloo|c10d|mpi|ucc):")


class Keeper:
    """Takes the events of a trace in, and keeps what is needed."""

    def __init__(self) -> None:
        self.kept = Kept()
        self._num_kept = 0
        self._names: dict[str, str] = {}
        self._texts: dict[bytes, str] = {}
        self._text_bytes = 0
        self._take: dict[str, Callable[[Event, int, int, Arguments], None]] = {
            "cpu_op": self._operator, "user_annotation": self._annotation, "python_function": self._call,
            "cuda_runtime": self._launch, "cuda_driver": self._launch, "kernel": self._on_device,
            "gpu_memcpy": self._on_device, "gpu_memset": self._on_device, "cpu_instant_event": self._instant,
            # what older profilers, and those of other devices, call them
            "Operator": self._operator, "Runtime": self._launch, "hip_runtime": self._launch,
            "xpu_runtime": self._launch, "xpu_driver": self._launch, "Kernel": self._on_device,
            "Memcpy": self._on_device, "Memset": self._on_device,
        }  # fmt: skip

    def add(self, events: Iterable[Event]) -> None:
        """Take in more events.

        Raises:
            UserError: there are more than memory is given to.
        """
        for event in events:
            take = self._take.get(event.cat)
            if take is None or (event.cat == "python_function" and not event.name.startswith(_MODULE)
                                and not event.name.endswith(_BACKWARD)):  # most of a trace with stacks
                continue
            start_us, length_us = event.ts, event.dur
            if length_us is None and event.name == "[memory]":
                length_us = 0.0
            if (start_us is None or length_us is None or not length_us >= 0
                    or not -_LATEST_US < start_us < start_us + length_us + 1 < _LATEST_US):
                self.kept.num_left_out += 1
                continue
            start_ns = round(start_us * 1000)
            take(event, start_ns, start_ns + round(length_us * 1000), event.args or _NO_ARGUMENTS)
        if self._num_kept > MAX_KEPT_EVENTS or self._text_bytes > _MAX_TEXT_BYTES:
            raise UserError(f"the trace holds more than {MAX_KEPT_EVENTS:,} events or {_MAX_TEXT_BYTES >> 20} MB of "
                            "names to keep: profile fewer iterations")

    def _operator(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        if event.name.startswith(_MARKS):
            self._annotation(event, start_ns, end_ns, args)
            return
        external_id = _external_id(args)
        sequence = None if args.sequence is None or args.sequence < 0 else args.sequence
        shapes = self._shapes(bytes(args.shapes) or bytes(args.old_shapes))
        operator = Operator((event.pid, event.tid), start_ns, end_ns, self._name(event.name), sequence, shapes)
        self.kept.operators.append(operator)
        self._num_kept += 1
        if external_id is not None:
            self.kept.by_id[external_id] = operator

    def _annotation(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        if _COLLECTIVE.match(event.name):
            self._operator(event, start_ns, end_ns, args)
        elif event.name.startswith((*_MARKS, *FORWARDS)):
            self._mark(self.kept.forwards if event.name.startswith(FORWARDS) else self.kept.marks, event,
                       start_ns, end_ns)

    def _call(self, event: Event, start_ns: int, end_ns: int, _: Arguments) -> None:
        if event.name.startswith(_MODULE):
            self._mark(self.kept.modules, event, start_ns, end_ns)
        elif _BACKWARD_CALL.search(event.name):
            self._mark(self.kept.backwards, event, start_ns, end_ns)

    def _mark(self, marks: list[Mark], event: Event, start_ns: int, end_ns: int) -> None:
        name = self._name(event.name.removeprefix(_MODULE))
        marks.append(Mark((event.pid, event.tid), start_ns, end_ns, name))
        self._num_kept += 1

    def _launch(self, event: Event, start_ns: int, _: int, args: Arguments) -> None:
        if args.correlation is not None:
            self.kept.launches[args.correlation] = Launch((event.pid, event.tid), start_ns, _external_id(args),
                                                          self._geometry(args))
            self._num_kept += 1

    def _on_device(self, event: Event, start_ns: int, end_ns: int, args: Arguments) -> None:
        device = event.pid if args.device is None else args.device
        stream = event.tid if args.stream is None else args.stream
        self.kept.device.append(DeviceEvent(
            start_ns, end_ns, self._name(event.name), self._name(event.cat.lower()), self._name(str(device)),
            self._name(str(stream)), _external_id(args), args.correlation, self._geometry(args)))  # fmt: skip
        self._num_kept += 1

    def _instant(self, event: Event, start_ns: int, _: int, args: Arguments) -> None:
        if event.name == "[memory]" and args.allocated is not None and args.device_type is not None:
            self.kept.allocated.append(Allocated(start_ns, args.allocated, args.device_type))
            self._num_kept += 1

    def _geometry(self, args: Arguments) -> Geometry:
        percent = args.occupancy_percent
        if percent == 0 and (args.warps_per_sm is None or args.warps_per_sm > _WARPS_OF_NONE):
            percent = None
        return (self._json(bytes(args.grid)), self._json(bytes(args.block)), args.registers, args.shared_memory,
                None if percent is None else percent / 100)

    def _name(self, name: str) -> str:
        """The one text that stands for all that are equal; the end of a huge one is left out."""
        if len(name) > MAX_NAME_LENGTH:
            name = f"{name[:MAX_NAME_LENGTH]}…"
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = name
            self._text_bytes += 4 * len(known)
        return known

    def _shapes(self, text: bytes) -> str:
        return self._parsed(text, _shapes_of) if text else "[]"

    def _json(self, text: bytes) -> str | None:
        shown = self._parsed(text, _compact) if text else ""
        return shown if shown.startswith("[") else None

    def _parsed(self, text: bytes, words: Callable[[Any], str]) -> str:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = words(msgspec.json.decode(text))
            self._text_bytes += 2 * len(text)
        return known


_NO_ARGUMENTS = Arguments()


def _external_id(args: Arguments) -> int | None:
    return args.old_external_id if args.external_id is None else args.external_id


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shapes_of(value: Any) -> str:
    """Shapes of tensors as JSON; a list of tensors is told by its length."""
    shapes = value if isinstance(value, list) else []
    return _compact([f"{len(shape)}_tensors" if isinstance(shape[0], list) else shape
                     for shape in shapes if isinstance(shape, list) and shape])
