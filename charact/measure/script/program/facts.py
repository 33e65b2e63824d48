"""Times, settings and all iterations of a whole watched program. No torch in here."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from charact.core.timeline import Iteration, iteration_rows
from charact.measure.script.spans.event_log_reader import EventLog
from charact.record.manifest_program import OutOfMemory, OwnTime, ProgramFacts, ProgramSettings
from charact.record.schema import PHASES, Rows

_MOST = 20
"""Largest number of models, optimizers and loaders that are recorded, each."""
_MOST_STARTS = 50
"""Largest number of starts of a loader whose times are recorded."""


class _LoaderStart(NamedTuple):
    """Start of a loader: its ID, the time at which the program asked for and got its iterator, and the first fetch."""

    loader: int
    begin_ns: int
    ready_ns: int
    owner: int
    fetch_ns: int
    end_ns: int


def program_facts(log: EventLog) -> ProgramFacts:
    """Return the times (s), the settings and the peak memory of a program.

    Only charact's own time is known if the program's end was not recorded. It is that of its start, and that of its
    passes less a median iteration for each of theirs. Other times do not contain it.
    """
    own_start_ns, end = log.last("started").get("own_ns", 0), log.last("end")
    facts = ProgramFacts(own_s=OwnTime(own_start_ns / 1e9, 0.0), process_peak_bytes=end.get("process_peak_bytes"),
                         settings=_settings(log), out_of_memory=_out_of_memory(log))
    iterations, span_ns = log.iterations, end.get("span_ns")
    if span_ns is None or not iterations:
        return facts
    begin_ns, first_ns = span_ns[0] + own_start_ns, iterations[0].start_ns
    end_ns: float = span_ns[1]
    last_ns: float = log.windows[-1].end_ns if log.windows else iterations[-1].end_ns
    in_windows_ns = sum(window.of(training).wall.sum_ns for window in log.windows for training in (True, False))
    inside_ns: float = sum(each.host_ns for each in iterations) + in_windows_ns
    if spans := log.pass_spans_ns:
        timed = log.timed(iterations)
        typical_ns = 0.0  # the time that the iterations of passes would have taken: for each, the median of its mode
        for training in (True, False):
            walls_ns = [each.host_ns for each in timed if each.training == training]
            num_in_passes = sum(each.training == training for each in iterations) - len(walls_ns)
            typical_ns += num_in_passes * median(walls_ns) if walls_ns else 0
        # Without charact, all that follows the passes would have happened earlier, by their own time.
        passes_own_ns = sum(end - begin for begin, end in spans) - typical_ns
        facts.own_s = OwnTime(own_start_ns / 1e9, max(0, passes_own_ns) / 1e9)
        last_ns, end_ns = max(last_ns, *(end for _, end in spans)) - passes_own_ns, end_ns - passes_own_ns
        inside_ns = sum(each.host_ns for each in timed) + typical_ns + in_windows_ns
    facts.duration_s, facts.before_s = (end_ns - begin_ns) / 1e9, max(first_ns - begin_ns, 0) / 1e9
    facts.between_s = max(last_ns - first_ns - inside_ns, 0) / 1e9
    facts.after_s = max(end_ns - last_ns, 0) / 1e9
    return facts


def _out_of_memory(log: EventLog) -> OutOfMemory | None:
    facts = log.last("out of memory").get("facts")
    return None if facts is None else msgspec.convert(facts, OutOfMemory)


def _settings(log: EventLog) -> ProgramSettings | None:
    """Return the settings of a program, see `ProgramSettings`; None if its log has none."""
    process = log.last("settings").get("settings")
    if process is None:
        return None
    inner = {part for facts in log.owners.values() if facts["kind"] == "model" for part in facts.get("parts", ())}
    models = [owner for owner, facts in log.owners.items() if facts["kind"] == "model"
              and "settings" in facts and log.totals.calls[owner] and owner not in inner]
    optimizers = [{"name": log.name(owner), "class": facts["class"], **facts["settings"],
                   "models": [log.name(model) for model in facts["models"] if model in log.owners]}
                  for owner, facts in log.owners.items() if facts["kind"] == "optimizer" and "settings" in facts]
    backwards = log.last("backwards")
    num_backwards = backwards.get("total") or None
    return msgspec.convert({
        **process, "anomaly_frac": num_backwards and min(1.0, backwards["anomalous"] / num_backwards),
        "num_backwards": num_backwards, "create_graph": backwards.get("create_graph"),
        "models": [_model(log, owner) for owner in models[:_MOST]], "optimizers": optimizers[:_MOST],
        "loaders": _loaders(log)[:_MOST]}, ProgramSettings)


def _model(log: EventLog, owner: int) -> dict[str, Any]:
    facts = log.owners[owner]
    settings = {key: value for key, value in facts["settings"].items() if key not in ("num_hooks", "num_modules")}
    sizes = [(each["num_hooks"], each["num_modules"]) for note in log.notes["owner"] if note["owner"] == owner
             and "num_hooks" in (each := note.get("settings", {}))]
    first, last = sizes[0] if sizes else (None, None), sizes[-1] if len(sizes) > 1 else (None, None)
    frozen = {row[0]: row[1:] for row in log.rows("frozen models")}
    num_rows, num_repeated = frozen.get(owner, (None, None))
    return {"name": log.name(owner), **settings, "num_parameters": facts["num_parameters"],
            "num_hooks_first": first[0], "num_hooks_last": last[0],
            "num_modules_first": first[1], "num_modules_last": last[1],
            "calls": log.totals.calls[owner], "inference_with_grad": log.totals.inference_with_grad[owner],
            "num_frozen_rows": num_rows, "num_repeated_rows": num_repeated}


def _loaders(log: EventLog) -> list[dict[str, Any]]:
    """Return settings and use of the loaders; loaders with equal settings from the same line are one entry."""
    groups: list[tuple[dict[str, Any], set[int]]] = []
    for note in log.notes["loader"]:
        group = next((numbers for settings, numbers in groups if settings == note["settings"]), None)
        if group is None:
            groups.append((note["settings"], {note["loader"]}))
        else:
            group.add(note["loader"])
    every_start, worker_fetch_ns = _starts(log), {row[0]: row[1] for row in log.rows("worker fetch")}
    entries = []
    for settings, numbers in groups:
        starts = [start for start in every_start if start.loader in numbers]
        iterators = {start.owner for start in starts}
        wait_ns = sum(start.ready_ns - start.begin_ns for start in starts) + sum(
            log.totals.fetch_ns[owner] for owner in iterators)
        fetch_ns = sum(worker_fetch_ns.get(number, 0) for number in numbers)
        entries.append(settings | {
            "num_iterators": len(starts), "num_batches": sum(log.totals.fetches[owner] for owner in iterators),
            "start_s": [max(0, start.end_ns - start.begin_ns) / 1e9 for start in starts[:_MOST_STARTS]],
            "wait_s": max(0, wait_ns) / 1e9, "worker_fetch_s": fetch_ns / 1e9 if fetch_ns else None})
    return entries


def _starts(log: EventLog) -> list[_LoaderStart]:
    return [_LoaderStart(*row) for row in log.rows("epochs")]


def program_iteration_rows(log: EventLog, of_case: Sequence[Iteration], timed: Sequence[Iteration],
                           undisturbed: Sequence[Iteration]) -> Rows:
    """Return rows of the table `program_iterations` for the iterations of a case.

    At least one of them is `timed`, in the table `iterations`; in those that are `undisturbed` no other pass measured.
    """
    began_ns = log.last("began").get("time_ns", log.iterations[0].start_ns)  # older versions do not note it
    indices = {id(iteration): index for index, iteration in enumerate(log.iterations)}
    numbers = {id(iteration): number for number, iteration in enumerate(timed)}
    without_passes = set(map(id, undisturbed))
    firsts = _firsts_of_epochs(log)
    shapes: dict[int, list[tuple[int, Any]]] = defaultdict(list)
    for time_ns, owner, lengths in log.rows("input shapes"):
        shapes[owner].append((time_ns, lengths))
    memory_samples, workers_samples = log.rows("memory"), log.rows("workers' memory")
    collections = log.rows("collections")
    rows: Rows = []
    for iteration in of_case:
        is_warmup = id(iteration) not in numbers and iteration.start_ns < timed[0].start_ns
        seconds = {row["phase"]: row["host_s"] for row in iteration_rows([iteration])}
        compile_ns = sum(each.host_ns for each in iteration.intervals if each.compiling)
        memory, workers = _last_in(memory_samples, iteration), _last_in(workers_samples, iteration)
        rows.append({
            "index": indices[id(iteration)], "iteration": numbers.get(id(iteration)),
            "kind": "pass" if id(iteration) not in without_passes else "warm-up" if is_warmup else "timed",
            "start_s": (iteration.start_ns - began_ns) / 1e9, "first_of_epoch": int(id(iteration) in firsts),
            "input_shapes": _input_shapes(shapes, iteration), "context": iteration.step and iteration.step.context,
            "wall_s": iteration.host_ns / 1e9, "compile_s": compile_ns / 1e9 if compile_ns else None,
            **{f"{phase}_s": seconds.get(phase) for phase in PHASES},
            "rss_bytes": memory and memory[1], "allocated_bytes": memory and memory[2],
            "workers_bytes": workers and workers[1], "gc_s": _collections_s(collections, iteration),
        })
    return rows


def _firsts_of_epochs(log: EventLog) -> set[int]:
    """Return the `id`s of the iterations whose first batch is the first since its loader was started.

    Logs of older versions, and those of `Profiler.iterate`, have no starts of loaders: there, the first batch of each
    iterator counts.
    """
    starts = {(start.owner, start.fetch_ns) for start in _starts(log)}
    firsts: set[int] = set()
    seen_owners: set[int] = set()
    for iteration in log.iterations:
        fetches = [each for each in iteration.intervals if each.phase == "data" and each.owner]
        for first in fetches[:1]:
            has_starts = first.owner > 0 and bool(starts)
            if (first.owner, first.start_ns) in starts if has_starts else first.owner not in seen_owners:
                firsts.add(id(iteration))
        seen_owners |= {each.owner for each in fetches}
    return firsts


def _input_shapes(changes: dict[int, list[tuple[int, Any]]], iteration: Iteration) -> str | None:
    """Return the shapes of the inputs of each model's first call in an iteration, as JSON; None if not known."""
    first_ns: dict[int, int] = {}
    for each in iteration.intervals:
        if each.phase == "forward" and each.owner:
            first_ns.setdefault(each.owner, each.start_ns)
    shapes: list[Any] = []
    for owner, start_ns in first_ns.items():
        index = bisect_right(changes[owner], start_ns, key=lambda change: change[0]) - 1
        shapes += changes[owner][index][1] if index >= 0 else []
    return json.dumps(shapes, separators=(",", ":")) if shapes else None


def _last_in(samples: Sequence[Any], iteration: Iteration) -> Any:
    index = bisect_right(samples, iteration.end_ns, key=lambda sample: sample[0]) - 1
    return samples[index] if index >= 0 and samples[index][0] > iteration.start_ns else None


def _collections_s(collections: Sequence[Sequence[int]], iteration: Iteration) -> float | None:
    begin = bisect_right(collections, iteration.start_ns, key=lambda collection: collection[1])
    total_ns = 0
    for begin_ns, end_ns in collections[begin:]:
        if begin_ns >= iteration.end_ns:
            break
        total_ns += min(end_ns, iteration.end_ns) - max(begin_ns, iteration.start_ns)
    return total_ns / 1e9 if total_ns > 0 else None
