"""Schema of an event log's notes, and its validation. No torch in here."""

import json
import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from charact.record.manifest import Gpu
from charact.record.manifest_passes import CoreUse, InspectionPass
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


class _Unknown(Struct):
    """Schema that no note matches: for kinds that no writer writes."""

    no_such_field: None


class _Note(Struct):
    note: str


class _Owned(Struct):
    owner: _Int
    variable: str | None
    class_: str = msgspec.field(name="class")


class _OfModel(ModelSettings, kw_only=True):
    num_hooks: Count
    num_modules: Count


class _Model(_Owned, kw_only=True):
    num_parameters: _Count
    settings: _OfModel | UnsetType = UNSET
    parts: list[_Int] = []
    methods: list[str] = []


class _Optimizer(_Owned, kw_only=True):
    settings: OptimizerSettings | UnsetType = UNSET
    models: list[_Int]


class _Loader(_Owned, kw_only=True):
    batch_size: Any
    num_workers: Annotated[int, Meta(ge=0, le=2**31)] | UnsetType | None = UNSET


class _Names(Struct):
    names: dict[Annotated[str, Meta(pattern=r"^-?[0-9]{1,19}$")], str]


class _End(Struct):
    ending: str
    time_s: float | UnsetType = UNSET
    traceback: str | UnsetType | None = UNSET
    span_ns: _Window | UnsetType = UNSET
    process_peak_bytes: _Count | UnsetType = UNSET


_Name = Annotated[str, Meta(max_length=200)]


class _Collectives(Struct):
    rows: list[tuple[_Int, _Name, _Count | None, _Count, _Name, _Count | None, _Count | None, _Name]]
    lost: _Count


class _NoCollectives(Struct):
    reason: str


class _Hung(Struct):
    text: str


class _Device(Struct):
    device: Annotated[str, Meta(pattern=r"^[a-z]{1,20}(:[0-9]{1,4})?$")]
    name: str | None
    reason: str | None


class _RuleFacts(Struct):
    num_warmup_iterations: _Count
    warmup_ended_by: str
    ended_by: str
    precision_target_frac: _Share | None
    interval_frac: _Share | None
    median_s: _Seconds | UnsetType = UNSET


class _Rule(Struct):
    facts: _RuleFacts


class _CoreUse(Struct):
    facts: CoreUse | None


class _Unwatched(Struct):
    children: _Count
    threads: _Count


class _TorchFacts(Struct):
    capability: str
    gpus: list[Gpu]
    no_gpu_reason: str | None
    num_threads: _Count
    software: dict[str, str | int | None]


class _Torch(Struct):
    facts: _TorchFacts


class _Frames(Struct):
    places: list[tuple[str, str, str | None]]
    samples: list[tuple[_Int, _Count]]
    texts: list[str | None] | UnsetType = UNSET
    loops: list[bool | None] | UnsetType = UNSET
    waiting: list[Share | None] | UnsetType = UNSET
    interval_s: _Seconds | UnsetType = UNSET
    delay_s: _Seconds | UnsetType = UNSET


class _TimingEnded(Struct):
    time_ns: _Int


class _WorkFacts(Struct):
    uncounted: list[str] | UnsetType = UNSET
    product_precision: str | UnsetType | None = UNSET
    unplaced_flop: float | UnsetType = UNSET
    unplaced_bytes: float | UnsetType = UNSET
    status: Literal["failed"] | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class _OperatorFacts(Struct):
    num_iterations: _Count
    num_counted_iterations: _Count
    iteration_s: _Seconds
    phase_s: dict[str, float | None]
    flop: _WorkFacts | UnsetType | None = UNSET


class _MemoryFacts(Struct):
    num_iterations: _Count
    peak_bytes: float
    allocator_peak_bytes: float | None
    reserved_peak_bytes: float | None
    process_peak_bytes: float | None


class _Outcome(Struct):
    status: str
    reason: str | None
    remedy: str | UnsetType | None = UNSET
    missing: dict[str, str] | UnsetType = UNSET


class _CounterFacts(Struct):
    num_iterations: _Count
    duration_s: _Seconds
    spans: list[tuple[float, float, str]]
    sources: dict[str, _Outcome]


class _Pass(Struct):
    pass_: Literal["operators", "memory", "inspection", "counters"] = msgspec.field(name="pass")
    status: Literal["ok", "failed", "skipped"]
    reason: str | None
    windows: list[_Window]
    mode: Literal["train", "infer"] = "train"
    facts: dict[str, Any] | UnsetType = UNSET
    tables: dict[str, list[dict[str, Any]]] | UnsetType = UNSET


_Length = Annotated[int, Meta(ge=0, le=2**53)]


class _EvaluationMeasured(Struct):
    span_ns: _Window


class _Began(Struct):
    time_ns: _Int


class _InputShapes(Struct):
    rows: list[tuple[_Int, _Int, list[list[_Length]]]]


class _Epochs(Struct):
    rows: list[tuple[_Int, _Int, _Int, _Int, _Int, _Int]]


class _Started(Struct):
    own_ns: _Count


class _LoaderNote(Struct):
    loader: _Count
    settings: LoaderSettings


class _Settings(Struct):
    settings: ProgramSettings


class _Collections(Struct):
    rows: list[tuple[_Int, _Int]]


class _Memory(Struct):
    rows: list[tuple[_Int, Count, Count | None]]


class _WorkersMemory(Struct):
    rows: list[tuple[_Int, Count]]


class _WorkerFetch(Struct):
    rows: list[tuple[_Count, _Count]]


class _Backwards(Struct):
    total: _Count
    anomalous: _Count
    create_graph: CallingPlace | None = None


class _FrozenModels(Struct):
    rows: list[tuple[_Int, Count, Count]]


_OWNERS: dict[str, type[_Owned]] = {"model": _Model, "optimizer": _Optimizer, "loader": _Loader}
_FACTS: dict[str, type] = {"operators": _OperatorFacts, "memory": _MemoryFacts, "inspection": InspectionPass,
                           "counters": _CounterFacts}
_KINDS: dict[str, type] = {"names": _Names, "end": _End, "rule": _Rule, "frames": _Frames, "core use": _CoreUse,
                           "collectives": _Collectives, "no collectives": _NoCollectives, "hung": _Hung,
                           "torch": _Torch, "unwatched": _Unwatched, "timing ended": _TimingEnded,
                           "timing resumed": _TimingEnded, "device": _Device,
                           "pass": _Pass, "evaluation measured": _EvaluationMeasured,
                           "began": _Began, "started": _Started,
                           "input shapes": _InputShapes, "epochs": _Epochs, "loader": _LoaderNote,
                           "frozen models": _FrozenModels,
                           "settings": _Settings, "backwards": _Backwards, "collections": _Collections,
                           "memory": _Memory, "workers' memory": _WorkersMemory, "worker fetch": _WorkerFetch}
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
    kind = msgspec.convert(note, _Note).note
    if kind == "owner":
        msgspec.convert(note, _OWNERS.get(str(note.get("kind")), _Unknown))
    elif kind in _KINDS:
        msgspec.convert(note, _KINDS[kind])
    if kind == "pass":
        _check_found(note)


def _check_found(note: dict[str, Any]) -> None:
    """Validate the tables and facts of a pass."""
    for table, rows in note.get("tables", {}).items():
        for row in rows:
            msgspec.convert(row, _ROWS.get(table, _Unknown))
    if note["status"] == "ok":
        msgspec.convert({"status": note["status"], **note.get("facts", {})}, _FACTS[note["pass"]])
        _check_finite(note["facts"])


def _check_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(inner)
