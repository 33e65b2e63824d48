"""Schema of an event log's notes, and its validation. No torch in here."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from charact.record.manifest import Gpu
from charact.record.manifest_passes import CoreUse, InspectionPass, SourceOutcome
from charact.record.manifest_program import (
    CallingPlace,
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    ProgramSettings,
)
from charact.record.manifest_types import Count, Share
from charact.record.schema import TABLES

_Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Window = tuple[_Int, _Int]
_Share = Annotated[float, Meta(ge=0, lt=1e6)]
_Seconds = Annotated[float, Meta(gt=0, lt=1e9)]
_Name = Annotated[str, Meta(max_length=200)]
_Length = Annotated[int, Meta(ge=0, le=2**53)]


def _fields(optional: Mapping[str, Any] | None = None, *, base: Any = None, **required: Any) -> Any:
    fields: list[Any] = [*required.items(), *((name, kind, None) for name, kind in (optional or {}).items())]
    return msgspec.defstruct("Note", fields, bases=None if base is None else (base,), kw_only=True)


_NOTE = _fields(note=str)
_UNKNOWN = _fields(no_such_field=None)
"""Schema that no note matches: for kinds that no writer writes."""
_OWNER: dict[str, Any] = {"owner": _Int, "variable": str | None, "class": str}
_OWNERS = {
    "model": _fields({"settings": _fields(base=ModelSettings, num_hooks=Count, num_modules=Count), "parts": list[_Int],
                      "methods": list[str]}, num_parameters=_Count, **_OWNER),
    "optimizer": _fields({"settings": OptimizerSettings}, models=list[_Int], **_OWNER),
    "loader": _fields({"num_workers": Annotated[int, Meta(ge=0, le=2**31)] | None}, batch_size=Any, **_OWNER),
}
_WORK = _fields({"uncounted": list[str], "product_precision": str | None, "unplaced_flop": float,
                 "unplaced_bytes": float, "status": Literal["failed"], "reason": str})
_FACTS = {
    "operators": _fields({"flop": _WORK | None, "phase_s": dict[str, float | None]}, num_iterations=_Count,
                         num_counted_iterations=_Count, iteration_s=_Seconds),
    "memory": _fields({"allocator_peak_bytes": float | None, "reserved_peak_bytes": float | None,
                       "process_peak_bytes": float | None}, num_iterations=_Count, peak_bytes=float),
    "inspection": InspectionPass,
    "counters": _fields(num_iterations=_Count, duration_s=_Seconds, spans=list[tuple[float, float, str]],
                        sources=dict[str, SourceOutcome]),
}
_KINDS = {
    "backwards": _fields({"create_graph": CallingPlace | None}, total=_Count, anomalous=_Count),
    "began": _fields(time_ns=_Int),
    "collections": _fields(rows=list[tuple[_Int, _Int]]),
    "collectives": _fields(rows=list[tuple[_Int, _Name, _Count | None, _Count, _Name, _Count | None, _Count | None,
                                           _Name]], lost=_Count),
    "core use": _fields(facts=CoreUse | None),
    "device": _fields(device=Annotated[str, Meta(pattern=r"^[a-z]{1,20}(:[0-9]{1,4})?$")], name=str | None,
                      reason=str | None),
    "end": _fields({"time_s": float, "traceback": str | None, "span_ns": _Window, "process_peak_bytes": _Count},
                   ending=str),
    "epochs": _fields(rows=list[tuple[_Int, _Int, _Int, _Int, _Int, _Int]]),
    "evaluation measured": _fields(span_ns=_Window),
    "frames": _fields({"texts": list[str | None], "loops": list[bool | None], "waiting": list[Share | None],
                       "interval_s": _Seconds, "delay_s": _Seconds},
                      places=list[tuple[str, str, str | None]], samples=list[tuple[_Int, _Count]]),
    "frozen models": _fields(rows=list[tuple[_Int, Count, Count]]),
    "hung": _fields(text=str),
    "input shapes": _fields(rows=list[tuple[_Int, _Int, list[list[_Length]]]]),
    "loader": _fields(loader=_Count, settings=LoaderSettings),
    "memory": _fields(rows=list[tuple[_Int, Count, Count | None]]),
    "names": _fields(names=dict[Annotated[str, Meta(pattern=r"^-?[0-9]{1,19}$")], str]),
    "no collectives": _fields(reason=str),
    "pass": _fields({"mode": Literal["train", "infer"], "facts": dict[str, Any],
                     "tables": dict[str, list[dict[str, Any]]]}, windows=list[_Window],
                    status=Literal["ok", "failed", "skipped"], reason=str | None, **{"pass": Literal[tuple(_FACTS)]}),
    "rule": _fields(facts=_fields({"median_s": _Seconds}, num_warmup_iterations=_Count, warmup_ended_by=str,
                                  ended_by=str, precision_target_frac=_Share | None, interval_frac=_Share | None)),
    "settings": _fields(settings=ProgramSettings),
    "started": _fields(own_ns=_Count),
    "timing ended": _fields(time_ns=_Int),
    "timing resumed": _fields(time_ns=_Int),
    "torch": _fields(facts=_fields(capability=str, gpus=list[Gpu], no_gpu_reason=str | None, num_threads=_Count,
                                   software=dict[str, str | int | None])),
    "unwatched": _fields(children=_Count, threads=_Count),
    "worker fetch": _fields(rows=list[tuple[_Count, _Count]]),
    "workers' memory": _fields(rows=list[tuple[_Int, Count]]),
}
_TYPES: dict[str, Any] = {"string": str | None, "int64": _Int | None, "float64": float | None}
_ROWS = {
    table: msgspec.defstruct(table, [(column.name, _TYPES[column.type], None) for column in TABLES[table]
                                     if column.name != "case"], forbid_unknown_fields=True)
    for table in ("operators", "kernels", "layers", "memory", "counters", "flop")
}


def read_note(line: bytes) -> dict[str, Any]:
    """Parse and validate a note; unknown kinds of notes are returned, too.

    Raises:
        ValueError: the line is not a valid note: the event log is damaged.
    """
    try:
        note = json.loads(line)
        if b"\\u" in line:  # file names may contain lone surrogates, which UTF-8 cannot encode
            note = json.loads(json.dumps(note, ensure_ascii=False).encode("utf-8", "replace"))
        _check(note)
    except (RecursionError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from error
    assert isinstance(note, dict)
    return note


def _check(note: Any) -> None:
    kind = msgspec.convert(note, _NOTE).note
    if kind == "owner":
        msgspec.convert(note, _OWNERS.get(str(note.get("kind")), _UNKNOWN))
    elif kind in _KINDS:
        msgspec.convert(note, _KINDS[kind])
    if kind == "pass":
        for table, rows in note.get("tables", {}).items():
            for row in rows:
                msgspec.convert(row, _ROWS.get(table, _UNKNOWN))
        if note["status"] == "ok":
            msgspec.convert({"status": note["status"], **note.get("facts", {})}, _FACTS[note["pass"]])
            _check_finite(note["facts"])


def _check_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(inner)
