"""Trace files: which ones are meant, what they are unpacked with, and which rank each is of."""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from charact.core.bounded_reading import BoundedStream, check_declared
from charact.core.errors import UserError
from charact.core.files import reading
from charact.traces.event_filter import Keeper
from charact.traces.events import Event, Kept
from charact.traces.json_stream import JsonStream, Readable
from charact.traces.names import clean, readable

_ENDINGS = (".json", ".json.gz")
_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$")
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_GZIP = b"\x1f\x8b"
_SIZE_BYTES = 4
"""At its end a packed file declares its unpacked size, modulo 4 GiB."""
MAX_UNPACKED_BYTES = 4 << 30
"""Largest unpacked size of a packed trace where the user sets no limit."""
MAX_DEVICES = 1024
_MAX_VERSION_LENGTH = 100
_DISTRIBUTED, _DEVICES = "distributedInfo", "deviceProperties"
_VERSIONS = ("cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
             "hip_driver_version", "roctracer_version")  # fmt: skip
_BESIDE = frozenset({_DISTRIBUTED, _DEVICES, *_VERSIONS})


Progress = Callable[[int, int], None]
"""Takes the number of bytes of the file that were read, and its size in bytes."""


@dataclass(frozen=True)
class Trace:
    """A trace that was read."""

    path: Path
    kept: Kept
    rank: int | None
    world_size: int | None
    devices: list[dict[str, Any]]
    """The devices of its machine: index, name, memory_bytes and num_multiprocessors, null where it does not tell."""
    versions: dict[str, Any]


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files that are meant: those named, and of directories the traces in them.

    Raises:
        UserError: a path is absent or cannot be read, or is a directory without traces.
    """
    files: list[Path] = []
    for path in paths:
        with reading(path):
            files += _files_at(path)
    return files


def _files_at(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"{path} is no file: name a trace of torch.profiler")
    inside = sorted(one for one in path.iterdir() if one.name.endswith(_ENDINGS) and one.is_file())
    if not inside:
        raise UserError(f"{path} holds no trace ({' or '.join(_ENDINGS)}): name one that does, or a file")
    return inside


def stem(path: Path) -> str:
    """A trace's name without what says that it is one."""
    name = readable(Path(path.name))
    return _SUFFIX.sub("", name) or name


def read_trace(path: Path, progress: Progress | None = None) -> Trace:
    """Read a trace file, packed or not.

    Args:
        path: the file. A packed one may unpack to 4 GiB, or what `charact.core.bounded_reading` was given as the limit.
        progress: called for each MiB or so.

    Raises:
        UserError: it is no trace, is cut off, damaged or unreadable, unpacks to more than the limit, or holds more
            events than fit into memory.
    """
    keeper = Keeper()
    try:
        with reading(path), path.open("rb") as raw:
            stream = JsonStream(_Source(raw, path, progress), path, _BESIDE)
            for events in stream.events(msgspec.json.Decoder(list[Event]).decode):
                keeper.add(events)
    except RecursionError as error:
        raise UserError(f"{path} is no trace of torch.profiler: it is nested too deeply") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is cut off or damaged ({error}): write the trace again") from error
    beside = stream.beside
    distributed = beside.get(_DISTRIBUTED)
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = beside.get(_DEVICES)
    devices = [_device(one) for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    if len(devices) > MAX_DEVICES:
        raise UserError(f"{path} describes {len(devices):,} devices: no machine has more than {MAX_DEVICES:,}")
    return Trace(
        path, keeper.kept, rank=_number(distributed.get("rank"), _rank_in_name(path)),
        world_size=_number(distributed.get("world_size")),
        devices=devices,
        versions={name: version for name in _VERSIONS if (version := _version(beside.get(name))) is not None},
    )  # fmt: skip


class _Source:
    """The text of a trace file, unpacked within the limit; reports how much of the file was read."""

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

    def read(self, size: int) -> bytes:
        text = self._text.read(size)
        if self._progress is not None:
            self._progress(self._raw.tell(), self._num_bytes)
        return text


def _device(properties: dict[str, Any]) -> dict[str, Any]:
    name = properties.get("name")
    return {"index": _number(properties.get("id")), "name": clean(name) if isinstance(name, str) else None,
            "memory_bytes": _number(properties.get("totalGlobalMem")),
            "num_multiprocessors": _number(properties.get("numSms"))}


def _version(value: Any) -> int | str | None:
    return clean(value)[:_MAX_VERSION_LENGTH] if isinstance(value, str) else _number(value)


def _number(value: Any, otherwise: int | None = None) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else otherwise


def _rank_in_name(path: Path) -> int | None:
    found = _RANK.search(path.name)
    return int(found[1]) if found else None
