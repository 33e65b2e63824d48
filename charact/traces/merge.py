"""One trace of several: a process row for each, for Perfetto."""

import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from charact.core.files import atomic_write
from charact.core.text import label
from charact.traces.json_stream import JsonStream
from charact.traces.reader import open_trace

_BASE = "baseTimeNanoseconds"
_KEPT = frozenset({_BASE})
_LINKS = ("id", "bind_id")
"""Fields that link events of one trace."""
_LONGEST_US = 1e16

Event = dict[str, Any]
_DECODER = msgspec.json.Decoder(list[Event])


@dataclass(frozen=True)
class Row:
    """A trace that becomes a process row, and the row's name."""

    name: str
    path: Path


@dataclass
class _Outline:
    """Names of a trace's processes and threads, and its first time."""

    base_ns: int = 0
    """Time of the trace's zero on the clock of the day."""
    first_us: float = math.inf
    processes: dict[Any, str] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], str] = field(default_factory=dict)


def merge_traces(rows: Sequence[Row], target: Path) -> int:
    """Write one trace with a process row for each given trace, packed if the name ends in `.gz`; return its events.

    Threads and streams of a trace become threads of its row. The time axis is that of the traces' clocks, from their
    first event on: rows of machines whose clocks differ are shifted against each other.
    """
    outlines = [_outline(row.path) for row in rows]
    first = min(outlines, key=lambda outline: outline.base_ns / 1e3 + outline.first_us)
    num_events = 0
    opened = partial(gzip.open, compresslevel=5) if target.name.endswith(".gz") else open
    with atomic_write(target) as temporary, cast(IO[bytes], opened(temporary, "wb")) as file:
        file.write(b'{"schemaVersion":1,"displayTimeUnit":"ms","traceEvents":[\n')
        encoder = msgspec.json.Encoder()
        for number, (row, outline) in enumerate(zip(rows, outlines, strict=True)):
            threads = {thread: place for place, thread in enumerate(outline.threads, start=1)}
            shift_us = (outline.base_ns - first.base_ns) / 1e3
            for event in chain(_names(number, row.name, outline),
                               _shifted(row, number, first.first_us, shift_us, threads)):
                file.write((b",\n" if num_events else b"") + encoder.encode(event))
                num_events += 1
        file.write(b"\n]}\n")
    return num_events


def _outline(path: Path) -> _Outline:
    outline = _Outline()
    with open_trace(path, _KEPT) as stream:
        for event in _events(stream):
            pid, tid, args = event.get("pid"), event.get("tid"), event.get("args")
            args = args if isinstance(args, dict) else {}
            if event.get("ph") != "M":
                outline.threads.setdefault((pid, tid), "")
                outline.first_us = min(outline.first_us, event["ts"])
            elif event.get("name") == "process_labels":
                outline.processes[pid] = label(str(args.get("labels", "")))
            elif event.get("name") == "thread_name":
                outline.threads[pid, tid] = label(str(args.get("name", "")))
        base = stream.metadata.get(_BASE)
    outline.base_ns = base if type(base) is int and abs(base) < _LONGEST_US * 1e3 else 0
    return outline


def _names(number: int, name: str, outline: _Outline) -> Iterator[Event]:
    row = {"ph": "M", "pid": number, "tid": 0}
    yield row | {"name": "process_name", "args": {"name": name}}
    yield row | {"name": "process_sort_index", "args": {"sort_index": number}}
    for place, ((pid, tid), thread) in enumerate(outline.threads.items(), start=1):
        words = [outline.processes.get(pid, ""), thread.strip() or f"{label(str(pid))} {label(str(tid))}".strip()]
        yield row | {"name": "thread_name", "tid": place, "args": {"name": ": ".join(filter(None, words)) or "others"}}


def _shifted(row: Row, number: int, origin_us: float, shift_us: float, threads: dict[tuple[Any, Any], int]
             ) -> Iterator[Event]:
    with open_trace(row.path, _KEPT) as stream:
        for event in _events(stream):
            if event.get("ph") != "M":
                links = {key: f"{number}.{event[key]}" for key in _LINKS if key in event}
                place = threads[event.get("pid"), event.get("tid")]
                yield event | links | {"pid": number, "tid": place, "ts": event["ts"] - origin_us + shift_us}


def _events(stream: JsonStream) -> Iterator[Event]:
    """Yield metadata and the events that have a plausible time."""
    for events in stream.events(_DECODER.decode):
        for event in events:
            threads = event.get("pid"), event.get("tid")
            ts = event.get("ts")
            is_timed = isinstance(ts, int | float) and abs(ts) < _LONGEST_US
            if all(isinstance(each, int | str | None) for each in threads) and (event.get("ph") == "M" or is_timed):
                yield event
