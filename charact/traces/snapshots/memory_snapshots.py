"""Reading of memory snapshots of PyTorch's CUDA caching allocator, as JSON: segments, and the history of events.

The format is that of `torch.cuda.memory._snapshot` (torch/cuda/memory.py) and of torch/csrc/cuda/Module.cpp. Sizes in
the history are those that the program requested; sizes of segments and of their blocks are rounded by the allocator.
"""

import hashlib
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from charact.core.errors import UserError
from charact.traces.events import clean
from charact.traces.json_stream import JsonStream, mended
from charact.traces.reader import MAX_DEVICES, Progress, open_text

FORMAT = "a memory snapshot (torch.cuda.memory._snapshot) as JSON"
ALLOC, FREE_REQUESTED, FREE_COMPLETED, RESERVE, RELEASE, OOM = range(6)
"""Actions of a history. Segments that are allocated or mapped reserve memory; freed or unmapped ones release it."""

_ACTIONS = {"alloc": ALLOC, "free_requested": FREE_REQUESTED, "free_completed": FREE_COMPLETED,
            "segment_alloc": RESERVE, "segment_map": RESERVE, "segment_free": RELEASE, "segment_unmap": RELEASE,
            "oom": OOM}
_WITHOUT_MEMORY = ("snapshot", "user_defined")
_HEAD_BYTES = 4096
_FIRST_KEY = re.compile(
    rb'\s*(?:\{\s*"(?:segments|device_traces|allocator_settings|external_annotations)"'
    rb'|\[\s*\{\s*"(?:device|address|active_size|allocated_size|segment_type|segment_pool_id|total_size)")')
_BETWEEN = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:action|address)"\s*:)')
"""The end of an event or block: frames inside of it begin with other keys."""
_MOST_BYTES, _MOST_ADDRESS, _LATEST_US = 1 << 53, (1 << 64) - 1, 1 << 53
_OF_TORCH = re.compile(
    r"(?:^|[\\/])(?:site|dist)-packages[\\/](?:torch|torchgen|functorch|triton)[\\/]"
    r"|(?:^|[\\/])pytorch[\\/]torch[\\/]|^<(?:frozen|eval_with_key)")
_PYTHON = re.compile(r"\.py$|^<")
_MOST_IN_ALL = 1 << 62
"""Largest sum of all sizes of a file, so that no sum of them overflows."""
_LONGEST_NAME = 300
_NO_SIZE = "with a size that is no number of bytes"

Site = tuple[str, str]
"""A line that allocated memory: "file:line", and the function."""
NO_SITE = -1


class _Frame(Struct):
    filename: Any = ""
    line: Any = 0
    name: Any = ""


class _Event(Struct):
    action: Any = None
    addr: Any = None
    device_free: Any = None
    size: Any = None
    time_us: Any = None
    frames: msgspec.Raw = msgspec.Raw(b"")


class _Block(Struct):
    address: Any = None
    size: Any = None
    requested_size: Any = None
    state: Any = None
    frames: msgspec.Raw = msgspec.Raw(b"")


class Block(NamedTuple):
    """A block of a segment when the snapshot was taken."""

    address: int
    num_bytes: int
    requested_bytes: int | None
    """None if the snapshot lacks it."""
    state: str
    """`allocated`, `awaiting_free` (freed, but another stream may use it) or `inactive`."""
    site: int


@dataclass
class Segment:
    """Memory that the allocator got from the driver at once."""

    num_bytes: int = 0
    stream: str = "default"
    pool: str = "default"
    blocks: list[Block] = field(default_factory=list)


@dataclass
class History:
    """The allocator's events on a device in order of time, as columns."""

    actions: "array[int]" = field(default_factory=lambda: array("b"))
    addresses: "array[int]" = field(default_factory=lambda: array("Q"))
    """Of an `OOM`, the free bytes that the driver reported."""
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    times_us: "array[float]" = field(default_factory=lambda: array("d"))
    """Never decreasing; without events if none has a time."""
    sites: "array[int]" = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.actions)


@dataclass
class Device:
    """The allocator's state on a device, and its history."""

    segments: list[Segment] = field(default_factory=list)
    history: History = field(default_factory=History)
    dropped: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    """Number of events, blocks or values that were left out, by what they are and why."""


@dataclass
class MemorySnapshot:
    """A memory snapshot that was read."""

    path: Path
    devices: dict[int, Device]
    """Devices with segments or events, in order."""
    sites: list[Site]
    settings: str | None
    """Settings of the allocator; None if the snapshot lacks them."""


def is_snapshot(path: Path) -> bool:
    """Return whether a file begins like a memory snapshot."""
    with open_text(path) as text:
        return bool(_FIRST_KEY.match(text.read(_HEAD_BYTES)))


def read_snapshot(path: Path, progress: Progress | None = None) -> MemorySnapshot:
    """Read a memory snapshot; values that are not plausible are left out and counted.

    Args:
        path: the file, compressed or not. A compressed one may unpack to 4 GiB, or the user's limit.
        progress: called about once per MiB.
    """
    with open_text(path, progress) as text:
        return _Reader(JsonStream(text, path, format_name=FORMAT, between=_BETWEEN), path).read()


class _Reader:
    """Reads the parts of a snapshot in the order of the file."""

    def __init__(self, stream: JsonStream, path: Path) -> None:
        self._stream, self._path = stream, path
        self._devices: dict[int, Device] = defaultdict(Device)
        self._sites: dict[Site, int] = {}
        self._site_of_stack: dict[bytes, int] = {}
        self._settings: str | None = None
        self._in_all = 0

    def read(self) -> MemorySnapshot:
        is_list = self._stream.first() == b"["
        found = is_list
        if is_list:  # torch.cuda.memory_snapshot
            self._read_segments()
        else:
            for key in self._stream.keys():  # noqa: SIM118  (no dictionary)
                found |= key in ("segments", "device_traces")
                if key == "segments":
                    self._read_segments()
                elif key == "device_traces":
                    for device, _ in enumerate(self._stream.elements()):
                        self._read_history(self._device(device))
                elif key == "allocator_settings":
                    self._settings = _settings_text(self._stream.value())
        self._stream.check_end()
        if not found:
            raise UserError(f"{self._path} has neither segments nor device_traces: name {FORMAT}")
        used = {index: device for index, device in sorted(self._devices.items())
                if device.segments or len(device.history)}
        if not used:
            raise UserError(f"{self._path} has no memory and no events: take the snapshot while the program holds "
                            "memory of a GPU")
        return MemorySnapshot(self._path, used, list(self._sites), self._settings)

    def _device(self, index: int) -> Device:
        if index >= MAX_DEVICES:
            raise UserError(f"{self._path} has a device {index:,}: no machine has more than {MAX_DEVICES:,}")
        return self._devices[index]

    def _read_segments(self) -> None:
        for _ in self._stream.elements():
            segment, values, dropped = Segment(), dict[str, Any](), Counter[tuple[str, str]]()
            for key in self._stream.keys():  # noqa: SIM118  (no dictionary)
                if key == "blocks":
                    address = _whole(values.get("address"), _MOST_ADDRESS) or 0
                    for blocks in self._stream.array(_decode_blocks):
                        for block in blocks:
                            address = self._add_block(segment, block, address, dropped)
                elif key in ("device", "address", "total_size", "stream", "segment_pool_id"):
                    values[key] = self._stream.value()
            device = self._device(_whole(values.get("device", 0)) or 0)
            device.dropped += dropped
            size = self._size(values.get("total_size"))
            if size is None:
                device.dropped["segments", _NO_SIZE] += 1
                continue
            segment.num_bytes = size
            segment.stream, segment.pool = _stream_name(values.get("stream")), _pool_name(values.get("segment_pool_id"))
            device.segments.append(segment)

    def _add_block(self, segment: Segment, block: _Block, address: int, dropped: "Counter[tuple[str, str]]") -> int:
        """Add a block to a segment; return the address behind it, that of the next one in versions without any."""
        size = self._size(block.size)
        if size is None:
            dropped["blocks", _NO_SIZE] += 1
            return address
        address = _whole(block.address, _MOST_ADDRESS) or address
        state = "allocated" if block.state == "active_allocated" else \
            "awaiting_free" if str(block.state).startswith("active_") else "inactive"
        site = self._site(block.frames) if state == "allocated" else NO_SITE
        segment.blocks.append(Block(address, size, self._size(block.requested_size), state, site))
        return address + size

    def _read_history(self, device: Device) -> None:
        history, dropped = device.history, device.dropped
        latest_us, has_times = 0.0, False
        for events in self._stream.array(_decode_events):
            for event in events:
                action = _ACTIONS.get(event.action) if isinstance(event.action, str) else None
                if action is None:
                    if event.action not in _WITHOUT_MEMORY:
                        dropped["events", "with an action that is not known"] += 1
                    continue
                size = self._size(event.size)
                address = _whole(event.device_free) if action == OOM else _whole(event.addr, _MOST_ADDRESS)
                if size is None:
                    dropped["events", _NO_SIZE] += 1
                    continue
                if address is None:
                    if action != OOM:
                        dropped["events", "with an address that is no number"] += 1
                        continue
                    address = _MOST_ADDRESS  # not known
                time_us = _time_us(event.time_us)
                if time_us is None:
                    dropped["times", "that are no microseconds since 1970: that of the event before is used"] += 1
                elif time_us < latest_us:
                    dropped["times", "before that of the event before, which is used"] += 1
                else:
                    latest_us, has_times = time_us, True
                history.actions.append(action)
                history.addresses.append(address)
                history.sizes.append(size)
                history.times_us.append(latest_us)
                history.sites.append(self._site(event.frames) if action in (ALLOC, OOM) else NO_SITE)
        if has_times:
            first_us = next(time_us for time_us in history.times_us if time_us)
            for number, time_us in enumerate(history.times_us):
                if time_us:
                    break
                history.times_us[number] = first_us
        else:
            del history.times_us[:]

    def _size(self, value: Any) -> int | None:
        size = _whole(value)
        self._in_all += size or 0
        if self._in_all > _MOST_IN_ALL:
            raise UserError(f"{self._path} has sizes of more than 2^62 bytes in all: write the snapshot again")
        return size

    def _site(self, frames: msgspec.Raw) -> int:
        """Return the index of the line that a stack belongs to; equal stacks are decoded once."""
        text = bytes(frames)
        if not text:
            return NO_SITE
        digest = hashlib.blake2b(text, digest_size=16).digest()
        if (known := self._site_of_stack.get(digest)) is not None:
            return known
        try:
            site = site_of(_decode_frames(mended(text)))
        except msgspec.DecodeError:
            site = None
        number = NO_SITE if site is None else self._sites.setdefault(site, len(self._sites))
        self._site_of_stack[digest] = number
        return number


_decode_events: Callable[[bytes], list[_Event]] = msgspec.json.Decoder(list[_Event]).decode
_decode_blocks: Callable[[bytes], list[_Block]] = msgspec.json.Decoder(list[_Block]).decode
_decode_frames: Callable[[bytes], list[_Frame]] = msgspec.json.Decoder(list[_Frame]).decode


def site_of(frames: list[_Frame]) -> Site | None:
    """Return the first line outside of PyTorch's own files, from the innermost frame on; None without frames.

    Files of PyTorch are those of its package, and code that is not Python. Without a line outside, it is the innermost
    line of Python, or of anything.
    """
    named = [(str(frame.filename), frame) for frame in frames]
    python = [(name, frame) for name, frame in named if _PYTHON.search(name)]
    outside = [(name, frame) for name, frame in python if not _OF_TORCH.search(name)]
    for name, frame in (*outside[:1], *python[:1], *named[:1]):
        line = _whole(frame.line)
        return f"{_short(name) or '?'}:{0 if line is None else line}", _short(str(frame.name)) or "?"
    return None


def _short(name: str) -> str:
    name = clean(name)
    return name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"


def _whole(value: Any, most: int = _MOST_BYTES) -> int | None:
    """Return a number from 0 to `most`, also one that was written as text or as a float; None for anything else."""
    if isinstance(value, str):
        try:
            value = int(value[:40], 0)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= most else None


def _time_us(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value[:40])
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LATEST_US \
        else None


def _stream_name(value: Any) -> str:
    number = _whole(value, _MOST_ADDRESS)
    return "not known" if number is None else hex(number) if number else "default"


def _pool_name(value: Any) -> str:
    """Return the name of a memory pool: `default`, or its two numbers, as for a CUDA graph."""
    numbers = [_whole(each, _MOST_ADDRESS) for each in value] if isinstance(value, list) else []
    return f"{numbers[0]}, {numbers[1]}" if len(numbers) == 2 and any(numbers) else "default"


def _settings_text(values: Any) -> str | None:
    """Return the settings of the environment variable; its name differs between versions and devices."""
    if not isinstance(values, dict):
        return None
    texts = [value for name, value in values.items() if name.endswith("_CONF") and isinstance(value, str)]
    return _short(texts[0]) if texts and texts[0] else None
