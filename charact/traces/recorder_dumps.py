"""Dumps of the flight recorder of torch.distributed, as JSON: the collectives that a rank called, and their sizes."""

import re
from pathlib import Path
from typing import Any

import msgspec

from charact.core.bounded_reading import read_all
from charact.core.errors import UserError
from charact.record.schema import Rows
from charact.traces.collective_names import TYPE_BYTES
from charact.traces.events import clean, readable
from charact.traces.files import MAX_UNPACKED_BYTES, open_text, rank_in_name

_FIRST_KEY = re.compile(rb'\s*\{\s*"(comm_lib_version|nccl_\w+|entries|pg_config|pg_status|version)"')
_HEAD_BYTES = 4096
_LATEST_NS = 1 << 63
_MOST_LISTED = 3
_NO_ITERATIONS = ("a dump of the flight recorder has neither iterations nor phases: all of it counts as one iteration, "
                  "from its first call of a collective to its last")


class _Entry(msgspec.Struct):
    profiling_name: str
    time_created_ns: int
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []
    duration_ms: float | None = None
    retired: bool = True

    @property
    def operation(self) -> str:
        """Name without its backend: all_reduce."""
        backend, _, operation = self.profiling_name.partition(":")
        return clean(operation or backend)

    @property
    def group(self) -> str:
        """Name of the process group, `default` for that of all ranks."""
        name, description = self.process_group
        return "default" if description == "default_pg" else clean(
            name if description in ("", "undefined") else description)

    @property
    def sequence(self) -> int:
        """Index of the collective in its group."""
        return self.p2p_seq_id if self.is_p2p else self.collective_seq_id


class _Group(msgspec.Struct):
    ranks: str = ""


class _Dump(msgspec.Struct):
    entries: list[_Entry]
    pg_config: dict[str, _Group] = {}


def is_dump(path: Path) -> bool:
    """Return whether a file begins like a dump of the flight recorder."""
    with open_text(path) as text:
        return bool(_FIRST_KEY.match(text.read(_HEAD_BYTES)))


def dump_case(path: Path, name: str, *, by_rank: bool) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return the case of a dump and its tables `iterations` and `collectives`.

    The rank is that of the file's name; a dump has none. Times are those of the calls. How long a collective took is
    known only from GPUs of which the recorder timed it.

    Args:
        path: the dump.
        name: name of the case's workload.
        by_rank: whether the rank is part of the case's name.
    """
    dump = _read(path)
    entries = sorted(dump.entries, key=lambda one: one.time_created_ns)
    if not entries:
        raise UserError(f"{path} has no collectives: set TORCH_FR_BUFFER_SIZE before torch.distributed is imported")
    if any(not 0 <= one.time_created_ns < _LATEST_NS or one.sequence < 0 for one in entries):
        raise UserError(f"{path} has impossible times or sequence numbers: write the dump again")
    sizes = {group: config.ranks.count(",") + 1 for group, config in dump.pg_config.items() if config.ranks}
    start_ns, rank = entries[0].time_created_ns, rank_in_name(path)
    span_s = (entries[-1].time_created_ns - start_ns) / 1e9
    rows = [_row(one, start_ns, sizes) for one in entries]
    unfinished = [one for one in entries if not one.retired]
    case = name if not by_rank or rank is None else f"{name}-rank{rank}"
    timing: dict[str, Any] = {
        "status": "ok", "reason": None, "num_warmup_iterations": 0, "warmup_ended_by": "number", "num_iterations": 1,
        "ended_by": "trace", "precision_target_frac": None, "interval_frac": None, "median_s": span_s,
        "attributed_frac": 0.0, "inferred_frac": 0.0, "compile_s": None, "own_marks": False, "evidence": {},
        "blind_spots": [_NO_ITERATIONS, *_not_completed(unfinished)],
    }  # fmt: skip
    entry = {
        "case": case, "workload": name, "variant": "", "input_kind": None, "input_size": None, "batch_size": None,
        "mode": "n/a", "precision": "as written", "device": "cuda" if "nccl:" in entries[0].profiling_name else "cpu",
        "device_name": None, "data": "as written", "num_parameters": None, "source": readable(path), "status": "ok",
        "reason": None, "requested_bytes": None, "rank": rank, "world_size": sizes.get("", sizes.get("0")),
        "passes": {"timing": timing, "collectives": {"status": "ok", "reason": None,
                                                     "num_not_completed": len(unfinished)}},
    }  # fmt: skip
    wall = {"iteration": 0, "phase": "other", "part": None, "host_s": span_s, "device_s": None}
    return entry, {"iterations": [wall], "collectives": rows}


def _read(path: Path) -> _Dump:
    with open_text(path) as text:
        content = read_all(text, path, MAX_UNPACKED_BYTES)
    try:
        return msgspec.json.decode(content, type=_Dump)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not a dump of the flight recorder ({error}): write it again") from error


def _not_completed(entries: list[_Entry]) -> list[str]:
    """Return a text on the collectives that had not completed; nothing if all had."""
    if not entries:
        return []
    listed = ", ".join(f"{one.operation} {one.sequence} of group {one.group}" for one in entries[:_MOST_LISTED])
    more = f" and {len(entries) - _MOST_LISTED} more" if len(entries) > _MOST_LISTED else ""
    return [f"{len(entries)} collective{'s' if len(entries) > 1 else ''} had not completed: {listed}{more}"]


def _row(one: _Entry, start_ns: int, sizes: dict[str, int]) -> dict[str, Any]:
    bytes_of = _num_bytes(one.input_sizes, one.input_dtypes), _num_bytes(one.output_sizes, one.output_dtypes)
    size = sizes.get(one.process_group[0], sizes.get("") if one.group == "default" else None)
    timed = one.duration_ms is not None and 0 <= one.duration_ms < 1e12
    return {
        "iteration": 0, "phase": "communication", "group": one.group, "group_size": size, "sequence": one.sequence,
        "operation": one.operation, "bytes": None if None in bytes_of else max(bytes_of, key=lambda size: size or 0),
        "start_s": (one.time_created_ns - start_ns) / 1e9, "wait_s": None, "exposed_s": None,
        "device_s": one.duration_ms / 1e3 if timed and one.duration_ms is not None else None,
    }


def _num_bytes(shapes: list[list[int]], types: list[str]) -> int | None:
    """Return the bytes of tensors; None if a type is unknown or a size is impossible."""
    total = 0
    for place, shape in enumerate(shapes):
        num_bytes = TYPE_BYTES.get(types[place] if place < len(types) else "")
        if num_bytes is None or any(not 0 <= length < 1 << 40 for length in shape):
            return None
        for length in shape:
            num_bytes *= length
        total += num_bytes
    return total if total < 1 << 53 else None
