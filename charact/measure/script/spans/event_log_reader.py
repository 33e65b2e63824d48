"""Reader of an event log: its slices, its notes, and the iterations of the whole program. No torch in here.

A record or line that a kill cut off is ignored. A file damaged by a power loss or a broken disk is read up to its first
invalid record.
"""

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from charact.core.bounded_reading import check_declared
from charact.core.timeline import Iteration
from charact.measure.script.ranks.collectives import Arrival, Arrivals, with_waiting
from charact.measure.script.spans.event_log import (
    ALL_FLAGS,
    BEGINS,
    ENDS,
    GRAD,
    KINDS,
    METHOD,
    NAMED,
    NO_TIME,
    RECORD,
    TRAINING,
)
from charact.measure.script.spans.generations import with_generations
from charact.measure.script.spans.iteration_segmenter import Segmenter
from charact.measure.script.spans.iterations import join_cycles
from charact.measure.script.spans.recorder import Kind, Slice
from charact.measure.script.windows.window import Window
from charact.measure.script.windows.window_log import read_windows
from charact.record.in_progress import NOTES, SLICES, WINDOWS
from charact.record.manifest import Gpu
from charact.record.manifest_passes import CoreUse, InspectionPass, SourceOutcome
from charact.record.manifest_program import (
    CallingPlace,
    Count,
    LoaderSettings,
    ModelSettings,
    OptimizerSettings,
    OutOfMemory,
    ProgramSettings,
    Share,
)
from charact.record.schema import TABLES

_MAX_BYTES = 2**30
"""Limit of a file's size in bytes; a program writes some 20 MB of slices, and less of notes."""
_Int = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Window = tuple[_Int, _Int]
_Share = Annotated[float, Meta(ge=0, lt=1e6)]
_Seconds = Annotated[float, Meta(gt=0, lt=1e9)]
_Name = Annotated[str, Meta(max_length=200)]
_Length = Annotated[int, Meta(ge=0, le=2**53)]
_NumTokens = Annotated[int, Meta(ge=0, le=2**36)]


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
_WORK = _fields({"uncounted": list[str], "product_precision": str | None, "recomputed_flop": float,
                 "unplaced_flop": float,
                 "unplaced_bytes": float, "status": Literal["failed"], "reason": str})
_FACTS = {
    "operators": _fields({"flop": _WORK | None, "phase_s": dict[str, float | None]}, num_iterations=_Count,
                         num_counted_iterations=_Count, iteration_s=_Seconds),
    "memory": _fields({"allocator_peak_bytes": float | None, "reserved_peak_bytes": float | None,
                       "process_peak_bytes": float | None}, num_iterations=_Count, peak_bytes=float),
    "inspection": _fields({"token_inputs": list[tuple[_Int, Count, Count, Count | None]]}, base=InspectionPass),
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
    "out of memory": _fields(facts=OutOfMemory),
    "pass": _fields({"mode": Literal["train", "infer"], "facts": dict[str, Any],
                     "tables": dict[str, list[dict[str, Any]]]}, windows=list[_Window],
                    status=Literal["ok", "failed", "skipped"], reason=str | None, **{"pass": Literal[tuple(_FACTS)]}),
    "rule": _fields(facts=_fields({"median_s": _Seconds}, num_warmup_iterations=_Count, warmup_ended_by=str,
                                  ended_by=str, precision_target_frac=_Share | None, interval_frac=_Share | None)),
    "settings": _fields(settings=ProgramSettings),
    "started": _fields(own_ns=_Count),
    "timing ended": _fields(time_ns=_Int),
    "timing resumed": _fields(time_ns=_Int),
    "token inputs": _fields(rows=list[tuple[_Int, _Int, _NumTokens, _NumTokens, bool, _NumTokens]]),
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
        note: dict[str, Any] = json.loads(line)
        if b"\\u" in line:  # file names may contain lone surrogates, which UTF-8 cannot encode
            note = json.loads(json.dumps(note, ensure_ascii=False).encode("utf-8", "replace"))
        kind = msgspec.convert(note, _NOTE).note
        if kind == "owner":
            msgspec.convert(note, _OWNERS.get(str(note.get("kind")), _UNKNOWN))
        elif kind in _KINDS:
            msgspec.convert(note, _KINDS[kind])
        if kind == "pass":
            for table, rows in note.get("tables", {}).items():
                msgspec.convert(rows, list[_ROWS.get(table, _UNKNOWN)])  # type: ignore[misc]
            if note["status"] == "ok":
                msgspec.convert({"status": "ok", **note.get("facts", {})}, _FACTS[note["pass"]])
                _check_finite(note["facts"])
    except (RecursionError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from error
    return note


def _check_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(inner)


class Damage(NamedTuple):
    """Position from which a file of an event log is damaged; the bytes before it are valid."""

    file: str
    at_byte: int
    lost_bytes: int

    def __str__(self) -> str:
        share = self.lost_bytes / (self.at_byte + self.lost_bytes)
        return (f"{self.file} is damaged from byte {self.at_byte:,} on: its last {self.lost_bytes:,} bytes "
                f"({share:.0%}) are lost, the bytes before are kept")


class EventLogReader:
    """Reader of an event log that may still grow. It reads a damaged file up to the first invalid record."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._slices_read = self._notes_read = 0
        self._last_ns = -(1 << 63)
        self.damage: dict[str, Damage] = {}
        """Damaged files, by name."""

    def slices(self) -> Iterator[Slice]:
        """Yield the slices since the last call; their events are device times in nanoseconds, or None."""
        content = self._since(SLICES, self._slices_read)
        whole = len(content) - len(content) % RECORD.size
        for record in RECORD.iter_unpack(content[:whole]):
            number, flags, named, start_ns, end_ns, owner, begun, ended = record
            if number not in KINDS or flags > ALL_FLAGS or named >= len(NAMED) or end_ns < start_ns:
                self._note_damage(SLICES, self._slices_read)
                return
            if start_ns < self._last_ns:  # slices are in order, so one of the two times is wrong
                self._note_damage(SLICES, self._slices_read - RECORD.size)
                return
            self._slices_read += RECORD.size
            self._last_ns = end_ns
            yield Slice(KINDS[number], start_ns, end_ns, owner, bool(flags & GRAD), bool(flags & TRAINING),
                        bool(flags & ENDS), None if begun == NO_TIME else begun,
                        None if ended == NO_TIME else ended, NAMED[named],
                        bool(flags & BEGINS), bool(flags & METHOD))

    def notes(self) -> list[dict[str, Any]]:
        """Return the notes since the last call."""
        content = self._since(NOTES, self._notes_read)
        *lines, rest = content.split(b"\n")
        notes = []
        for line in lines:
            try:
                notes.append(read_note(line))
            except ValueError:
                self._note_damage(NOTES, self._notes_read)
                return notes
            self._notes_read += len(line) + 1
        if b"\0" in rest:  # not the beginning of a line
            self._note_damage(NOTES, self._notes_read)
        return notes

    def _note_damage(self, name: str, at_byte: int) -> None:
        size = (self._directory / name).stat().st_size
        self.damage[name] = Damage(name, at_byte, size - at_byte)

    def _since(self, name: str, offset: int) -> bytes:
        if name in self.damage:
            return b""
        try:
            with open(self._directory / name, "rb") as file:
                check_declared(os.fstat(file.fileno()).st_size, self._directory / name, _MAX_BYTES)
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return b""


class SliceTotals:
    """Numbers and times of spans, by owner ID."""

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        self.calls: Counter[int] = Counter()
        """Outermost calls of each model."""
        self.inference_with_grad: Counter[int] = Counter()
        """Those in eval mode and with gradients, after which no backward followed.

        None followed if the next batch is fetched first, or the model called in training mode.
        """
        self.fetches: Counter[int] = Counter()
        """Batches of each loader's iterator."""
        self.fetch_ns: Counter[int] = Counter()
        """Time of its fetches, also of those without a batch."""
        self.compiled_whole = False
        """Whether a compilation began while no span was open: then a function was compiled, not a model."""
        undecided: Counter[int] = Counter()
        any_open = False
        for each in slices:
            self.compiled_whole |= each.kind is Kind.COMPILE and not any_open
            any_open = not each.ends
            if each.kind in (Kind.FETCH, Kind.EXHAUSTED, Kind.END):
                self.inference_with_grad += undecided
                undecided.clear()
                self.fetches[each.owner] += each.kind is Kind.FETCH and each.ends
                self.fetch_ns[each.owner] += each.end_ns - each.start_ns
            elif each.kind is Kind.BACKWARD:
                undecided.clear()
            elif each.kind is Kind.FORWARD and each.begins and each.owner:
                self.calls[each.owner] += 1
                if each.grad and each.training:
                    self.inference_with_grad[each.owner] += undecided.pop(each.owner, 0)
                elif each.grad:
                    undecided[each.owner] += 1
        self.inference_with_grad += undecided


class EventLog:
    """Contents of an event log: the program's iterations, the totals of its spans, and its notes."""

    def __init__(self, iterations: Sequence[Iteration], notes: Iterable[dict[str, Any]] = (),
                 totals: SliceTotals | None = None, damage: Mapping[str, Damage] | None = None,
                 windows: Sequence[Window] = ()) -> None:
        self.totals = totals or SliceTotals()
        self.notes: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        """Notes by kind, see `_KINDS`."""
        for note in notes:
            self.notes[note["note"]].append(note)
        self.damage = damage or {}
        """Damaged files by name, whose rest is lost."""
        self.windows = windows
        """Windows of time after the log was full, in order."""
        self.owners: dict[int, dict[str, Any]] = {note["owner"]: note for note in self.notes["owner"]}
        """Latest facts of models, optimizers and loaders, by owner ID."""
        self.names = {int(owner): name for note in self.notes["names"] for owner, name in note["names"].items()}
        """Names of global variables that hold them."""
        self.arrivals = Arrivals([Arrival(*row) for row in self.rows("collectives")])
        """Collectives that this rank called."""
        self.iterations = [with_waiting(each, self.arrivals) for each in iterations] if len(self.arrivals) else list(
            iterations)

    def last(self, kind: str) -> dict[str, Any]:
        """Return the last note of a kind; an empty one if there is none."""
        return self.notes[kind][-1] if self.notes[kind] else {}

    def rows(self, kind: str) -> list[list[Any]]:
        """Return the rows of all notes of a kind."""
        return [row for note in self.notes[kind] for row in note["rows"]]

    def total(self, kind: str, field: str) -> int:
        """Return the sum of a field over all notes of a kind."""
        return sum(note[field] for note in self.notes[kind])

    @property
    def ending(self) -> str | None:
        """How the program ended; None if it was killed."""
        return self.last("end").get("ending")

    def name(self, owner: int) -> str:
        """Return the program's name for a model or optimizer, else its class."""
        facts = self.owners[owner]
        return str(self.names.get(owner) or facts.get("variable") or facts["class"])

    def pass_notes(self, mode: str) -> dict[str, dict[str, Any]]:
        """Return the result of each pass by name: of the training, or ("infer") of evaluations inside of it."""
        return {note["pass"]: note for note in self.notes["pass"] if (note.get("mode") or "train") == mode}

    @property
    def evaluation_spans_ns(self) -> list[tuple[int, int]]:
        """Starts and ends of what passes measured of evaluations inside of a training."""
        return [(begin_ns, end_ns) for begin_ns, end_ns in
                (note["span_ns"] for note in self.notes["evaluation measured"])]

    @property
    def pass_spans_ns(self) -> list[tuple[int, int]]:
        """Starts and ends of all that passes measured; empty without passes, or if they did not end."""
        windows = [window for note in self.pass_notes("train").values() for window in note["windows"]]
        ended_ns = self.last("timing ended").get("time_ns")
        end_ns = self.last("timing resumed").get("time_ns", max((end for _, end in windows), default=None))
        return [] if ended_ns is None or end_ns is None else [(ended_ns, end_ns), *self.evaluation_spans_ns]

    def timed(self, iterations: Sequence[Iteration]) -> list[Iteration]:
        """Return the iterations in which no pass measured."""
        ended_ns, resumed_ns = (self.last(f"timing {what}").get("time_ns") for what in ("ended", "resumed"))
        if ended_ns is None:
            return list(iterations)
        evaluations = self.evaluation_spans_ns
        return [each for each in iterations
                if (each.end_ns <= ended_ns or (resumed_ns is not None and each.start_ns >= resumed_ns))
                and not any(each.start_ns < end_ns and begin_ns < each.end_ns for begin_ns, end_ns in evaluations)]


def read_event_log(directory: Path) -> EventLog:
    """Read a whole event log."""
    reader = EventLogReader(directory)
    slices = list(reader.slices())
    if SLICES in reader.damage:
        del slices[reader.damage[SLICES].at_byte // RECORD.size:]
    segmenter = Segmenter(ends_marked=any(each.kind is Kind.END for each in slices))
    iterations = [*segmenter.feed(slices), *segmenter.finish()]
    if not segmenter.ends_marked:
        iterations = join_cycles(iterations)
    # Only a damaged log contains iterations without duration.
    iterations, notes = [each for each in iterations if each.end_ns > each.start_ns], reader.notes()
    if not segmenter.ends_marked:
        token_rows = [row for note in notes if note["note"] == "token inputs" for row in note["rows"]]
        iterations = with_generations(iterations, token_rows)
    windows, num_bytes, lost_bytes = read_windows(directory)
    lost = {WINDOWS: Damage(WINDOWS, num_bytes, lost_bytes)} if lost_bytes else {}
    return EventLog(iterations, notes, SliceTotals(slices), reader.damage | lost, windows)
