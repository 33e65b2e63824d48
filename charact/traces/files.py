"""Trace files: which ones are meant, what they are unpacked with, and which rank each is of."""

import gzip
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from charact.errors import UserError
from charact.files import reading
from charact.traces.events import Event, Kept
from charact.traces.json_stream import JsonStream
from charact.traces.keeper import Keeper

_ENDINGS = (".json", ".json.gz")
_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$")
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_GZIP = b"\x1f\x8b"
_DISTRIBUTED, _DEVICES = "distributedInfo", "deviceProperties"
_VERSIONS = ("cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
             "hip_driver_version", "roctracer_version")  # fmt: skip
_BESIDE = frozenset({_DISTRIBUTED, _DEVICES, *_VERSIONS})


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
        UserError: a path is absent, or a directory without traces.
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


def readable(path: Path) -> str:
    """A path as text, whatever bytes its name is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def stem(path: Path) -> str:
    """A trace's name without what says that it is one."""
    name = readable(Path(path.name))
    return _SUFFIX.sub("", name) or name


def read_trace(path: Path) -> Trace:
    """Read a trace file, packed or not.

    Raises:
        UserError: it is no trace, or is cut off, damaged or unreadable.
    """
    keeper = Keeper()
    try:
        with reading(path), path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            stream = JsonStream(unpacked, path, _BESIDE)
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
    return Trace(
        path, keeper.kept, rank=_number(distributed.get("rank"), _rank_in_name(path)),
        world_size=_number(distributed.get("world_size")),
        devices=[_device(one) for one in devices if isinstance(one, dict)] if isinstance(devices, list) else [],
        versions={name: beside[name] for name in _VERSIONS if isinstance(beside.get(name), (int, float, str))},
    )  # fmt: skip


def _device(properties: dict[str, Any]) -> dict[str, Any]:
    name = properties.get("name")
    return {"index": _number(properties.get("id")), "name": name if isinstance(name, str) else None,
            "memory_bytes": _number(properties.get("totalGlobalMem")),
            "num_multiprocessors": _number(properties.get("numSms"))}


def _number(value: Any, otherwise: int | None = None) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else otherwise


def _rank_in_name(path: Path) -> int | None:
    found = _RANK.search(path.name)
    return int(found[1]) if found else None
