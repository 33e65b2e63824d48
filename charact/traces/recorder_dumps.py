"""Dumps of the flight recorder of torch.distributed, as JSON: the collectives that a rank called, and their sizes."""

import re
from pathlib import Path

import msgspec

from charact.core.bounded_reading import read_all
from charact.core.errors import UserError
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import CollectivesPass, TimingPass
from charact.record.schema import Rows
from charact.traces.collective_names import Dump, RecordedCollective
from charact.traces.events import clean, readable
from charact.traces.reader import MAX_UNPACKED_BYTES, open_text, rank_in_name

_FIRST_KEY = re.compile(rb'\s*\{\s*"(comm_lib_version|nccl_\w+|entries|pg_config|pg_status|version)"')
_HEAD_BYTES = 4096
_LATEST_NS = 1 << 63
_MOST_LISTED = 3
_NO_ITERATIONS = ("a dump of the flight recorder has neither iterations nor phases: all of it counts as one iteration, "
                  "from its first call of a collective to its last")


class _CompleteDump(Dump):
    entries: list[RecordedCollective]


def is_dump(path: Path) -> bool:
    """Return whether a file begins like a dump of the flight recorder."""
    with open_text(path) as text:
        return bool(_FIRST_KEY.match(text.read(_HEAD_BYTES)))


def dump_case(path: Path, name: str, *, by_rank: bool) -> tuple[CaseEntry, dict[str, Rows]]:
    """Return the case of a dump and its tables `iterations` and `collectives`.

    The rank is that of the file's name; a dump has none. Times are those of the calls. How long a collective took is
    known only from GPUs of which the recorder timed it.
    """
    dump = _read(path)
    entries = sorted(dump.entries, key=lambda entry: entry.time_created_ns)
    if not entries:
        raise UserError(f"{path} has no collectives: set TORCH_FR_BUFFER_SIZE before torch.distributed is imported")
    if any(not 0 <= entry.time_created_ns < _LATEST_NS or entry.sequence < 0 for entry in entries):
        raise UserError(f"{path} has impossible times or sequence numbers: write the dump again")
    start_ns, rank = entries[0].time_created_ns, rank_in_name(path)
    span_s = (entries[-1].time_created_ns - start_ns) / 1e9
    rows = [{
        "iteration": 0, "phase": "communication", "group": clean(entry.group), "group_size": dump.group_size(entry),
        "sequence": entry.sequence, "operation": clean(entry.operation), "bytes": entry.num_bytes,
        "start_s": (entry.time_created_ns - start_ns) / 1e9, "wait_s": None, "exposed_s": None,
        "device_s": entry.duration_ms / 1e3
        if entry.duration_ms is not None and 0 <= entry.duration_ms < 1e12 else None,
    } for entry in entries]  # fmt: skip
    unfinished = [entry for entry in entries if not entry.retired]
    case = name if not by_rank or rank is None else f"{name}-rank{rank}"
    entry = CaseEntry(case, "ok", name, precision="as written",
                      device="cuda" if "nccl:" in entries[0].profiling_name else "cpu", data="as written",
                      source=readable(path), rank=rank, world_size=dump.size_of("", "0"))
    entry.passes["timing"] = TimingPass(
        "ok", num_warmup_iterations=0, warmup_ended_by="number", num_iterations=1, ended_by="trace", median_s=span_s,
        attributed_frac=0.0, inferred_frac=0.0, own_marks=False,
        blind_spots=[_NO_ITERATIONS, *_not_completed(unfinished)])
    entry.passes["collectives"] = CollectivesPass("ok", num_not_completed=len(unfinished))
    wall = {"iteration": 0, "phase": "other", "part": None, "host_s": span_s, "device_s": None}
    return entry, {"iterations": [wall], "collectives": rows}


def _read(path: Path) -> Dump:
    with open_text(path) as text:
        content = read_all(text, path, MAX_UNPACKED_BYTES)
    try:
        return msgspec.json.decode(content, type=_CompleteDump)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not a dump of the flight recorder ({error}): write it again") from error


def _not_completed(entries: list[RecordedCollective]) -> list[str]:
    if not entries:
        return []
    listed = ", ".join(f"{clean(entry.operation)} {entry.sequence} of group {clean(entry.group)}"
                       for entry in entries[:_MOST_LISTED])
    more = f" and {len(entries) - _MOST_LISTED} more" if len(entries) > _MOST_LISTED else ""
    return [f"{len(entries)} collective{'s' if len(entries) > 1 else ''} had not completed: {listed}{more}"]
