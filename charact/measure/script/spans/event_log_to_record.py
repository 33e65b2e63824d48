"""From a spool to the cases and tables of a record. No torch in here."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from charact.core.errors import UserError
from charact.measure.script.spans.blind_spots import blind_spots, is_compiled_whole
from charact.measure.script.spans.event_log import Damage, SpoolReader, num_slices
from charact.measure.script.spans.iterations import Iteration, Stretch
from charact.measure.script.spans.pass_results import Passes
from charact.measure.script.spans.recorder import Kind, Slice
from charact.measure.script.spans.segmenter import Segmenter
from charact.measure.script.spans.stack_sampler import Samples
from charact.record.in_progress import NOTES, SLICES

MOST_WARMUP = 3
"""Iterations that are left out as warm-up where the user named no number: at most so many, and a quarter of all."""

Rows = list[dict[str, Any]]


@dataclass
class Watched:
    """What a spool holds: the program's iterations, and what was noted beside them."""

    iterations: list[Iteration]
    owners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Facts about models, optimizers and loaders, by identity."""
    names: dict[int, str] = field(default_factory=dict)
    """What the program calls them."""
    ending: str | None = None
    """How the program ended; None where it was killed."""
    rule: dict[str, Any] = field(default_factory=dict)
    """How warm-up and measurement ended, where something else than the program did that."""
    passes: Passes = field(default_factory=Passes)
    """What followed the timing."""
    samples: Samples = field(default_factory=Samples)
    """Where the program was while no phase ran."""
    compiled_whole: bool = False
    """Whether anything was compiled outside of all spans."""
    full: bool = False
    """Whether the watching ended because the spool took no more."""
    damage: list[Damage] = field(default_factory=list)
    """Where the files are damaged, of which the rest is lost."""


class ScriptOptions(msgspec.Struct):
    """Options of the run of a watched program: its source, and what of it is measured."""

    script: str
    skip: Annotated[int, Meta(ge=0)] | None
    iterations: Annotated[int, Meta(ge=1)] | None
    passes: list[str]


def script_options(manifest: Mapping[str, Any]) -> ScriptOptions | None:
    """Options of a run's watched program; None of a run that is of none.

    Raises:
        UserError: they are not what they should be.
    """
    options = manifest.get("options", {})
    if "script" not in options:
        return None
    try:
        converted = msgspec.convert(options, ScriptOptions)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UserError(f"run.json is corrupt (options: {error}): restore it from a copy") from error
    # A path may hold bytes that are no UTF-8, as lone surrogates, which no table can hold.
    return msgspec.structs.replace(converted, script=converted.script.encode("utf-8", "replace").decode())


def read_spool(directory: Path) -> Watched:
    """All of a spool.

    Raises:
        UserError: a file is larger than any that a program writes.
    """
    reader = SpoolReader(directory)
    slices: list[Slice] = list(reader.slices())
    if SLICES in reader.damage:
        del slices[num_slices(reader.damage[SLICES].at_byte):]
    segmenter = Segmenter(told=any(one.kind is Kind.END for one in slices))
    iterations = [*segmenter.feed(slices), *segmenter.finish()]
    # No iteration takes no time, unless a damaged log says so.
    watched = Watched([one for one in iterations if one.end_ns > one.start_ns],
                      compiled_whole=is_compiled_whole(slices))
    notes = reader.notes()
    watched.damage, watched.passes.damaged = list(reader.damage.values()), NOTES in reader.damage
    for note in notes:
        if note["note"] == "owner":
            watched.owners[note["owner"]] = note
        elif note["note"] == "names":
            watched.names |= {int(owner): name for owner, name in note["names"].items()}
        elif note["note"] == "end":
            watched.ending = note["ending"]
        elif note["note"] == "rule":
            watched.rule = note["facts"]
        elif note["note"] == "frames":
            watched.samples.add(note)
        elif note["note"] == "full":
            watched.full = True
        watched.passes.add(note)
    return watched


def script_cases(watched: Watched, name: str, source: str, skip: int | None, limit: int | None,
                 passes: Sequence[str] = ()) -> list[tuple[dict[str, Any], dict[str, Rows]]]:
    """Cases of a watched program, each with its tables: its training, and its inference.

    Args:
        watched: what the spool holds.
        name: of the program.
        source: where the program is.
        skip: iterations to leave out before the first that counts; None for a warm-up.
        limit: iterations that count at most; None for all.
        passes: those that were asked for besides the timing; they are the first case's.
    """
    cases: list[tuple[dict[str, Any], dict[str, Rows]]] = []
    for training in (True, False):
        of_mode = [one for one in watched.iterations if one.training == training]
        iterations = watched.passes.timed(of_mode)
        if training or not cases:
            num_skipped = _num_warmup(len(iterations), limit) if skip is None else skip
            iterations = iterations[num_skipped:][:limit]
        else:
            num_skipped = 0
        if iterations:
            ended_by = "max_iterations" if len(iterations) == limit else "program"
            case = _case(watched, name, source, training, iterations, num_skipped, ended_by)
            if not cases:
                watched.passes.put_into(*case, passes, of_mode)
            cases.append(case)
    return cases


def _num_warmup(num_iterations: int, limit: int | None) -> int:
    """Number of iterations to leave out; what was run beyond the limit was run for them."""
    beyond = 0 if limit is None else num_iterations - limit
    return min(MOST_WARMUP, max(num_iterations // 4, beyond))


def _case(watched: Watched, name: str, source: str, training: bool, iterations: list[Iteration], num_skipped: int,
          ended_by: str) -> tuple[dict[str, Any], dict[str, Rows]]:
    parts = _parts(watched, iterations)
    rows = [row for number, iteration in enumerate(iterations) for row in iteration_rows(number, iteration, parts)]
    on_device = any(row["device_s"] is not None for row in rows)
    mode = "train" if training else "infer"
    models = {stretch.owner for one in iterations for stretch in one.stretches if stretch.phase == "forward"} - {0}
    walls_s = [(one.end_ns - one.start_ns) / 1e9 for one in iterations]
    inferred = sum(stretch.end_ns - stretch.start_ns for one in iterations for stretch in one.stretches
                   if stretch.inferred)
    compiling = sum(stretch.end_ns - stretch.start_ns for one in watched.iterations if one.training == training
                    for stretch in one.stretches if stretch.compiling)
    other_s = sum(row["host_s"] for row in rows if row["phase"] == "other")
    entry: dict[str, Any] = {
        "case": f"{name}-{mode}", "workload": name, "variant": "", "input_kind": None, "input_size": None,
        "batch_size": loaders_batch_size(watched.owners, iterations), "mode": mode, "precision": "as written",
        "device": "cuda" if on_device else "cpu", "device_name": None, "data": "as written",
        "num_parameters": sum(watched.owners.get(model, {}).get("num_parameters", 0) for model in models) or None,
        "source": source, "status": "ok", "reason": None, "requested_bytes": None,
        "passes": {"timing": {
            "status": "ok", "reason": None, "num_warmup_iterations": num_skipped, "warmup_ended_by": "number",
            "num_iterations": len(iterations), "ended_by": ended_by, "precision_target_frac": None,
            "interval_frac": None, "median_s": median(walls_s), "attributed_frac": 1 - other_s / sum(walls_s),
            "inferred_frac": inferred / 1e9 / sum(walls_s), "compile_s": compiling / 1e9 if compiling else None,
            "blind_spots": [*(f"the event log was damaged: {one}" for one in watched.damage),
                            *blind_spots(iterations, compiled_whole=watched.compiled_whole, full=watched.full)],
            **watched.rule,
        }},
    }
    if watched.samples.any:
        entry["passes"]["frames"] = watched.samples.in_other(iterations)
    return entry, {"iterations": rows}


def iteration_rows(number: int, iteration: Iteration, parts: dict[int, str]) -> Rows:
    """Rows of the table `iterations`: phases and parts, and `other` for what is left."""
    host_ns: dict[tuple[str, str | None], int] = defaultdict(int)
    device_ns: dict[tuple[str, str | None], int] = defaultdict(int)
    on_device = _has_device(iteration) and all(map(_has_device, iteration.stretches))
    for one in iteration.stretches:
        key = one.phase, parts.get(one.owner)
        host_ns[key] += one.end_ns - one.start_ns
        device_ns[key] += _device_ns(one) if on_device else 0
    host_ns["other", None] += iteration.end_ns - iteration.start_ns - sum(host_ns.values())
    device_ns["other", None] += _device_ns(iteration) - sum(device_ns.values()) if on_device else 0
    return [
        {"iteration": number, "phase": phase, "part": part, "host_s": ns / 1e9,
         "device_s": device_ns[phase, part] / 1e9 if on_device else None}
        for (phase, part), ns in host_ns.items()
    ]


def _has_device(one: Iteration | Stretch) -> bool:
    return one.start_event is not None and one.end_event is not None


def _device_ns(one: Iteration | Stretch) -> int:
    assert isinstance(one.start_event, int)
    assert isinstance(one.end_event, int)
    return one.end_event - one.start_event


def _parts(watched: Watched, iterations: Sequence[Iteration]) -> dict[int, str]:
    """Names of the models and optimizers, where there are several names; modules without weights have none.

    Models of the same name and class that ran one after another, such as those of several fits, are one.
    """
    spans: dict[int, tuple[int, int]] = {}
    """Number of the first and of the last iteration of each."""
    for number, iteration in enumerate(iterations):
        for stretch in iteration.stretches:
            spans[stretch.owner] = spans.get(stretch.owner, (number, number))[0], number
    facts = [watched.owners[owner] for owner in sorted(spans) if owner in watched.owners]
    models = [one for one in facts if one["kind"] == "model" and one["num_parameters"]]
    optimizers = [one for one in facts if one["kind"] == "optimizer"]
    latest: dict[str, list[dict[str, Any]]] = defaultdict(list)
    """By name the models that ran beside one another, each the latest of its kind."""
    names: dict[int, str] = {}
    for one in models:
        name = _name(watched, one)
        begins = spans[one["owner"]][0]
        place = next((place for place, before in enumerate(latest[name])
                      if before["class"] == one["class"] and spans[before["owner"]][1] < begins), len(latest[name]))
        latest[name][place:place + 1] = [one]
        names[one["owner"]] = name if place == 0 else f"{name} #{place + 1}"
    for one in optimizers:
        served = [names[model] for model in one["models"] if model in names]
        names[one["owner"]] = " + ".join(served) or _name(watched, one)
    return names if len(set(names.values())) > 1 else {}


def _name(watched: Watched, facts: dict[str, Any]) -> str:
    """Name of a global variable at the end, else of any variable when it was first used, else of its class."""
    return str(watched.names.get(facts["owner"]) or facts.get("variable") or facts["class"])


def loaders_batch_size(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    """Samples of an iteration, from the loader that gave most batches; None where no loader tells.

    Where gradients are accumulated over several batches, they all count.
    """
    of_iterations = [Counter(stretch.owner for stretch in one.stretches if stretch.phase == "data")
                     for one in iterations]
    for loader, _ in sum(of_iterations, Counter[int]()).most_common():
        size = owners.get(loader, {}).get("batch_size")
        if isinstance(size, int) and 0 < size < 2**53:
            return size * round(median(fetches[loader] for fetches in of_iterations if loader in fetches))
    return None
