"""Types of run.json, and reading and validation of it."""

import contextlib
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from charact.core.bounded_reading import read_all
from charact.core.errors import UserError
from charact.core.files import reading
from charact.core.text import valid_text
from charact.record.in_progress import is_changed
from charact.record.manifest_passes import PASSES, Facts, Pass, Passes
from charact.record.manifest_program import Amount, Category, Count, Device, Number, RankCount
from charact.record.schema import CASE_STATUSES, DAMAGED, PARALLEL, RUN_STATUSES, SCHEMA_VERSION, TABLES

MOST_BYTES = 2**28
"""Default limit of the size of run.json in bytes; that of 1,000 cases has about 2 MiB."""
_MOST_DEPTH = 50
REMEDY = "restore it from a copy, or move the run away"


class Fits(Struct):
    """Estimates of the largest sizes that would have fitted into memory."""

    batch_size: Count | None = None
    input_size: Count | None = None


class OutOfMemory(Facts, omit_defaults=False):
    """Details of a case that ran out of memory."""

    requested_bytes: Amount | None = None
    free_bytes: Amount | None = None
    limit_bytes: Amount | None = None
    phase: str | None = None
    composition: dict[Category, Number] | None = None
    composition_source: str | None = None
    fits: Fits | None = None
    fits_reason: str | None = None


class CaseEntry(Facts):
    """A case of the run: its parameters, status and passes.

    `reason`: why it is not ok. `source`: the publication of its model or suite, or else the trace or the program that
    it comes from. `attention`: its backend; None for PyTorch's choice. `num_trainable_parameters`: those that a
    training updates; None if it updates all. `lora_rank`: of the adapters that are trained; None without.
    `requested_bytes`: size of the allocation that failed. `rank`, `local_rank`, `world_size` and `hostname`: only in a
    case of one rank. `facts`: what only this kind of case has, see its writer.
    """

    case: str
    status: Literal[CASE_STATUSES]  # type: ignore[valid-type]
    workload: str = "n/a"
    variant: str = ""
    mode: str = "n/a"
    precision: str = "n/a"
    device: Device = "n/a"
    reason: str | None = None
    input_kind: str | None = None
    input_size: Count | None = None
    batch_size: Count | None = None
    output_size: Count | None = None
    cache: str | None = None
    attention: str | None = None
    device_name: str | None = None
    data: str | None = None
    num_parameters: Count | None = None
    num_trainable_parameters: Count | None = None
    lora_rank: Count | None = None
    rank: RankCount | None = None
    local_rank: RankCount | None = None
    world_size: RankCount | None = None
    hostname: str | None = None
    parallel: Literal[PARALLEL] | None = None  # type: ignore[valid-type]
    global_batch_size: Count | None = None
    source: str | None = None
    requested_bytes: Amount | None = None
    passes: Passes = msgspec.field(default_factory=Passes)
    out_of_memory: OutOfMemory | None = None
    facts: dict[str, Any] | None = None


COORDINATES = {field.name: field.default for field in msgspec.structs.fields(CaseEntry) if field.name in (
    "workload", "variant", "mode", "precision", "device", "reason", "input_kind", "input_size", "batch_size",
    "device_name", "data", "num_parameters", "source", "requested_bytes")}
"""Defaults of the columns that `Run.cases` always has."""


class Processor(Struct):
    """Facts of a machine's processor."""

    model: str | None = None
    num_physical_cores: Count | None = None
    num_logical_cores: Count | None = None
    num_usable_cores: Count | None = None


class Gpu(Struct):
    """Facts of a GPU."""

    name: str | None = None
    index: Count | None = None
    memory_bytes: Amount | None = None


class Machine(Struct):
    """Facts of a machine."""

    hostname: str | None = None
    cpu: Processor | None = None
    memory_bytes: Amount | None = None
    memory_limit_bytes: Amount | None = None
    gpus: list[Gpu] = []
    fingerprint: str | None = None


class Software(Struct):
    """Versions of installed software."""

    torch: str | None = None
    environment: dict[str, Any] = {}


class Options(Struct):
    """Options of the command that wrote the run; only those that charact reads again."""

    script: str | None = None
    arguments: list[Any] = []
    skip: Count | None = None
    iterations: Count | None = None
    passes: list[str] = []
    command: str | None = None
    data: str | None = None
    device: str | None = None
    workers: Count | None = None
    traces: list[str] = []
    channels_last: bool | None = None
    threads: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    suite: str | None = None
    suite_digest: str | None = None
    compositions: str | None = None


class Ceiling(Struct):
    """A device's best measured rate or time; see `charact.machine.ceilings_cache`."""

    device: Device
    ceiling: str
    value: Annotated[float, Meta(gt=0, le=1e30)]
    unit: str
    low: Amount | None = None
    high: Amount | None = None
    precision: str | None = None
    level: str | None = None
    working_set_bytes: Amount | None = None
    datasheet: Amount | None = None
    datasheet_source: str | None = None
    theoretical: Amount | None = None
    cores_frac: Amount | None = None
    origin: str | None = None


class CollectiveCeiling(Struct):
    """Best measured bandwidth of a collective between ranks; see `charact.machine.ceilings_cache`."""

    backend: str
    num_ranks: RankCount
    operation: str
    bytes: Amount
    bus_bytes_per_s: Annotated[float, Meta(gt=0, le=1e30)]
    time_s: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None


class CounterMeaning(Struct):
    """Description of a counter."""

    definition: str
    method: str
    scope: str


class LogDamage(Struct):
    """A damaged range in the event log of a profiled program."""

    file: str
    at_byte: Count
    lost_bytes: Count


class RankIdentity(Struct):
    """Place of the process that wrote the run among the ranks of its job; see `charact.machine.rank_identity`."""

    rank: RankCount
    world_size: RankCount
    job: str
    launcher: str
    local_rank: RankCount | None = None


class Rank(Struct):
    """A rank of a run that was merged from the parts of several."""

    rank: RankCount
    world_size: RankCount
    local_rank: RankCount | None = None
    hostname: str | None = None
    num_iterations: Count | None = None
    ending: str | None = None
    traceback: str | None = None
    ended_s: float | None = None
    reason: str | None = None
    hung: str | None = None


class Reference(Struct):
    """Source of a table of published values; `unstated`: what the source does not state."""

    source: str
    unstated: str
    notes: list[str]


class Manifest(Struct):
    """Content of run.json."""

    schema_version: Annotated[int, Meta(ge=1)]
    run_id: str
    name: str
    status: Literal[RUN_STATUSES]  # type: ignore[valid-type]
    cases: list[Any]
    hostname: str | None = None
    started: str | None = None
    ended: str | None = None
    ending: str | None = None
    command_line: list[str] = []
    machine: Machine = msgspec.field(default_factory=Machine)
    software: Software = msgspec.field(default_factory=Software)
    options: Options = msgspec.field(default_factory=Options)
    tables: list[Literal[tuple(TABLES)]] = []  # type: ignore[valid-type]
    table_checksums: dict[str, str] = {}
    checksum: str | None = None
    ceilings: list[Ceiling] | None = None
    ceilings_reason: str | None = None
    collective_ceilings: list[CollectiveCeiling] = []
    collective_ceilings_reason: str | None = None
    counters: dict[str, dict[str, CounterMeaning]] = {}
    reference: Reference | None = None
    rank: RankIdentity | None = None
    ranks: list[Rank] = []
    world_size: RankCount | None = None
    traceback: str | None = None
    ended_s: float | None = None
    reason: str | None = None
    hung: str | None = None
    event_log_damage: list[LogDamage] = []
    flushes: dict[str, dict[str, Count]] = {}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the validated manifest of a run, from the path of run.json.

    A case with invalid facts gets the status 'damaged', a reason with the error, and no passes.
    """
    with reading(path), path.open("rb") as file:
        content = read_all(file, path, MOST_BYTES)
    try:
        manifest = json.loads(content.decode("utf-8"))
        _check_values(manifest)
        version = manifest["schema_version"]
        if type(version) is int and version > SCHEMA_VERSION:
            raise UserError(f"{path.parent} was written with schema {version}, this charact reads up to "
                            f"{SCHEMA_VERSION}: upgrade charact")
        if is_changed(manifest):
            raise UserError(f"{path} was changed since it was written (its checksum does not match): {REMEDY}")
        started = msgspec.convert(manifest, Manifest).started
        try:
            datetime.fromisoformat(started or "2000-01-01").timestamp()
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"{str(started)[:40]!r} is not a time - at `$.started`") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} is corrupt ({one_line(error)}): {REMEDY}") from error
    return {"machine": {}, "software": {}, "options": {}, **manifest,
            "cases": _checked_cases(manifest["cases"], path.name)}


def _check_values(value: Any, depth: int = 0) -> None:
    if depth > _MOST_DEPTH:
        raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{str(value)[:40]} is too large for an integer")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_values(each, depth + 1)


def check_holds(manifest: dict[str, Any], run: Path, **wanted: tuple[str, ...]) -> None:
    """Raise an error if a manifest lacks facts that a command needs, or has a damaged case.

    `wanted` has the names of the needed facts, by part of the manifest (such as `options`); `run` is for the message.
    """
    missing = [f"{part}.{name}" for part, names in wanted.items() for name in names if manifest[part].get(name) is None]
    if missing:
        raise UserError(f"{run / 'run.json'} lacks {', '.join(missing)}: {REMEDY}")
    for case in manifest["cases"]:
        if case["status"] == DAMAGED:
            raise UserError(f"case {case['case']} of {run} is damaged ({case['reason']}): {REMEDY}")


def one_line(error: Exception) -> str:
    """Return an error's message as one line; after 200 characters it is cut and gets an ellipsis."""
    message = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    message = " ".join(valid_text(message).split())
    return message if len(message) <= 200 else f"{message[:200]}…"


def _checked_cases(entries: list[Any], name: str) -> list[dict[str, Any]]:
    """Return the validated cases; replace damaged ones by placeholders with the error as reason."""
    cases: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        try:
            case_id = typed_entry(entry).case
            if case_id in cases:
                raise ValueError("duplicate - at `$.case`")
            case = {**COORDINATES, "passes": {}, **entry}
        except ValueError as error:
            # The placeholder has the valid fields of the entry.
            fields = entry if isinstance(entry, dict) else {}
            case = COORDINATES | {"case": f"case {number}", "passes": {}}
            for field in msgspec.structs.fields(CaseEntry):
                if field.name in case and field.name in fields and field.name != "passes":
                    with contextlib.suppress(msgspec.ValidationError):
                        case[field.name] = msgspec.convert(fields[field.name], field.type)
            where = one_line(error).replace("`$", f"`$.cases[{number}]")
            case |= {"status": DAMAGED, "reason": f"{name}: {where}"}
            while case["case"] in cases:
                case["case"] += "'"
        cases[case["case"]] = case
    return list(cases.values())


def typed_entry(entry: Any) -> CaseEntry:
    """Return a case of run.json with its passes as Structs; facts that this version does not know are left out.

    Raises:
        ValueError: a fact is invalid; the message names its place, as in "`$.passes.timing.status`".
    """
    if not isinstance(entry, dict):
        raise ValueError(f"Expected `object`, got `{type(entry).__name__}`")
    typed = msgspec.convert({name: value for name, value in entry.items() if name != "passes"}, CaseEntry)
    for name, facts in _converted(entry.get("passes", {}), dict[str, dict[str, Any]], "$.passes").items():
        typed.passes[name] = _converted(facts, PASSES.get(name, Pass), f"$.passes.{name}")
        if typed.passes[name].status is None:
            raise ValueError(f"Object missing required field `status` - at `$.passes.{name}`")
    return typed


def _converted(facts: Any, type_: Any, place: str) -> Any:
    try:
        return msgspec.convert(facts, type_)
    except msgspec.ValidationError as error:
        whole = "" if "`$" in str(error) else " - at `$`"
        raise ValueError(f"{error}{whole}".replace("`$", f"`{place}")) from error
