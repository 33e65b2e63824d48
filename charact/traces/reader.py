"""Trace files: selection, decompression, and their ranks."""

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from charact.core.bounded_reading import BoundedStream, check_declared
from charact.core.errors import UserError
from charact.core.files import reading
from charact.traces.decoding import EventDecoder
from charact.traces.event_filter import EventFilter
from charact.traces.events import TraceEvents, clean, readable
from charact.traces.json_stream import JsonStream, Readable

_ENDINGS = (".json", ".json.gz")
_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$")
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_GZIP = b"\x1f\x8b"
_SIZE_BYTES = 4
"""Size of the field at the end of a gzip file with its unpacked size, modulo 4 GiB."""
MAX_UNPACKED_BYTES = 4 << 30
"""Default limit of the unpacked size of a compressed trace."""
MAX_DEVICES = 1024
_MAX_VERSION_LENGTH = 100
_DISTRIBUTED, _DEVICES = "distributedInfo", "deviceProperties"
_VERSIONS = ("cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
             "hip_driver_version", "roctracer_version")  # fmt: skip
_INDEX_KEYS = ("id", "index", "deviceId", "device")
_NAME_KEYS = ("name", "gpuName", "deviceName", "device_name", "gpu_name")
"""Keys of a device's properties in traces of several profilers; those of PyTorch come first."""
_METADATA_KEYS = frozenset({_DISTRIBUTED, _DEVICES, *_VERSIONS})


Progress = Callable[[int, int], None]
"""Callback with the number of bytes read from the file, and its size in bytes."""


@dataclass(frozen=True)
class Trace:
    """A trace that was read."""

    path: Path
    events: TraceEvents
    rank: int | None
    world_size: int | None
    devices: list[dict[str, Any]]
    """Devices of its machine: index, name, memory_bytes and num_multiprocessors, null if not in the trace."""
    versions: dict[str, Any]


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the named files, and the traces in named directories."""
    files: list[Path] = []
    for path in paths:
        with reading(path):
            if not path.is_file() and not path.is_dir():
                raise UserError(f"{path} is not a file: name a trace of torch.profiler, or a memory snapshot as JSON")
            inside = [path] if path.is_file() else sorted(
                file for file in path.iterdir() if file.name.endswith(_ENDINGS) and file.is_file())
            if not inside:
                raise UserError(f"{path} has no trace ({' or '.join(_ENDINGS)}): name another directory, or a file")
            files += inside
    return files


def stem(path: Path) -> str:
    """Return a trace's name without the suffixes of traces."""
    name = readable(Path(path.name))
    return _SUFFIX.sub("", name) or name


@contextlib.contextmanager
def open_trace(path: Path, wanted: frozenset[str], progress: Progress | None = None) -> Iterator[JsonStream]:
    """Yield the JSON of a trace file, compressed or not."""
    with open_text(path, progress) as text:
        yield JsonStream(text, path, wanted)


@contextlib.contextmanager
def open_text(path: Path, progress: Progress | None = None) -> "Iterator[_Source]":
    """Yield the text of a file, compressed or not; arguments and errors as in `open_trace`."""
    try:
        with reading(path), path.open("rb") as raw:
            if _PICKLE.match(raw.read(2)):  # such as an older dump of the flight recorder
                raise UserError(f"{path} is a pickle, which can run any code when it is read: name a trace of "
                                "torch.profiler, or write JSON. The flight recorder's dump: "
                                "torch._C._distributed_c10d._dump_fr_trace_json. A memory snapshot, in Python: "
                                f"import json, pickle; json.dump(pickle.load(open({str(path)!r}, 'rb')), "
                                f"open({str(path.with_suffix('.json'))!r}, 'w'), default=str)")
            raw.seek(0)
            yield _Source(raw, path, progress)
    except RecursionError as error:
        raise UserError(f"{path} is not a trace of torch.profiler: it is nested too deeply") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is truncated or damaged ({error}): write the trace again") from error


def read_trace(path: Path, progress: Progress | None = None) -> Trace:
    """Read a trace file, compressed or not.

    Args:
        path: the file. A compressed one may unpack to 4 GiB, or the limit of `charact.core.bounded_reading`.
        progress: called about once per MiB.
    """
    event_filter, decode = EventFilter(), EventDecoder()
    with open_trace(path, _METADATA_KEYS, progress) as stream:
        for events in stream.events(decode):
            event_filter.add(events)
    event_filter.events.resolution_ns = decode.resolution_ns
    metadata = stream.metadata
    distributed, listed = metadata.get(_DISTRIBUTED), metadata.get(_DEVICES)
    distributed = distributed if isinstance(distributed, dict) else {}
    listed = [*listed.values()] if isinstance(listed, dict) else listed
    devices = [{
        "index": next((index for key in _INDEX_KEYS if (index := _number(device.get(key))) is not None), None),
        "name": next((clean(name).strip() for key in _NAME_KEYS if isinstance(name := device.get(key), str)
                      and name.strip()), None),
        "memory_bytes": _number(device.get("totalGlobalMem")), "num_multiprocessors": _number(device.get("numSms")),
    } for device in (listed if isinstance(listed, list) else []) if isinstance(device, dict)]  # fmt: skip
    if len(devices) > MAX_DEVICES:
        raise UserError(f"{path} describes {len(devices):,} devices: no machine has more than {MAX_DEVICES:,}")
    return Trace(
        path, event_filter.events, rank=_number(distributed.get("rank"), rank_in_name(path)),
        world_size=_number(distributed.get("world_size")), devices=devices,
        versions={name: version for name in _VERSIONS if (version := _version(metadata.get(name))) is not None},
    )  # fmt: skip


class _Source:
    """The text of a trace file, unpacked within the limit; reports progress in the file."""

    def __init__(self, raw: IO[bytes], path: Path, progress: Progress | None) -> None:
        self._raw, self._progress = raw, progress
        self._num_bytes = os.fstat(raw.fileno()).st_size
        packed = raw.read(len(_GZIP)) == _GZIP
        if packed and self._num_bytes >= _SIZE_BYTES:
            raw.seek(-_SIZE_BYTES, os.SEEK_END)
            check_declared(int.from_bytes(raw.read(_SIZE_BYTES), "little"), path, MAX_UNPACKED_BYTES)
        raw.seek(0)
        self._text: Readable = raw
        if packed:
            self._text = BoundedStream(cast(IO[bytes], gzip.GzipFile(fileobj=raw)), path, MAX_UNPACKED_BYTES)

    def read(self, size: int = -1, /) -> bytes:
        text = self._text.read(size)
        if self._progress is not None:
            self._progress(self._raw.tell(), self._num_bytes)
        return text


def _version(value: Any) -> int | str | None:
    return clean(value)[:_MAX_VERSION_LENGTH] if isinstance(value, str) else _number(value)


def _number(value: Any, otherwise: int | None = None) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else otherwise


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file's name, as in trace-rank3.json; None without one."""
    found = _RANK.search(path.name)
    return int(found[1]) if found else None
