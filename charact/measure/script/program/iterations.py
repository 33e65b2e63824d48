"""Rows of the table `program_iterations`: every iteration of a watched program. No torch in here."""

import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from charact.core.timeline import Iteration, iteration_rows
from charact.measure.script.program.notes import ProgramNotes
from charact.record.schema import PHASES, Rows


def program_iteration_rows(notes: ProgramNotes, every: Sequence[Iteration], of_case: Sequence[Iteration],
                           timed: Sequence[Iteration], undisturbed: Sequence[Iteration]) -> Rows:
    """Return the rows of a case.

    Args:
        notes: notes of the program's event log.
        every: all iterations of the program, in order.
        of_case: the iterations of the case.
        timed: the case's iterations in the table `iterations`; at least one.
        undisturbed: the case's iterations in which no other pass measured.
    """
    began_ns = every[0].start_ns if notes.began_ns is None else notes.began_ns
    indices = {id(one): index for index, one in enumerate(every)}
    numbers = {id(one): number for number, one in enumerate(timed)}
    without_passes = {id(one) for one in undisturbed}
    firsts = _firsts_of_epochs(notes, every)
    rows: Rows = []
    for one in of_case:
        is_warmup = id(one) not in numbers and one.start_ns < timed[0].start_ns
        rows.append({
            "index": indices[id(one)], "iteration": numbers.get(id(one)),
            "kind": "pass" if id(one) not in without_passes else "warm-up" if is_warmup else "timed",
            "start_s": (one.start_ns - began_ns) / 1e9, "first_of_epoch": int(indices[id(one)] in firsts),
            "input_shapes": _input_shapes(notes, one), **_times(one), **_memory(notes, one),
            "gc_s": _collections_s(notes, one),
        })
    return rows


def _firsts_of_epochs(notes: ProgramNotes, every: Sequence[Iteration]) -> set[int]:
    """Return the indices of the iterations whose first batch is the first since its loader was started.

    Logs of older versions, and those of `Profiler.iterate`, have no starts of loaders: there, the first batch of each
    iterator counts.
    """
    starts = {(one.owner, one.fetch_ns) for one in notes.starts}
    firsts: set[int] = set()
    seen_owners: set[int] = set()
    for index, iteration in enumerate(every):
        fetches = [one for one in iteration.intervals if one.phase == "data" and one.owner]
        for first in fetches[:1]:
            has_starts = first.owner > 0 and bool(starts)
            if (first.owner, first.start_ns) in starts if has_starts else first.owner not in seen_owners:
                firsts.add(index)
        seen_owners |= {one.owner for one in fetches}
    return firsts


def _input_shapes(notes: ProgramNotes, iteration: Iteration) -> str | None:
    """Return the shapes of the inputs of each model's first call in an iteration, as JSON; None if not known."""
    first_ns: dict[int, int] = {}
    for one in iteration.intervals:
        if one.phase == "forward" and one.owner:
            first_ns.setdefault(one.owner, one.start_ns)
    shapes: list[Any] = []
    for owner, start_ns in first_ns.items():
        changes = notes.shapes.get(owner, [])
        index = bisect_right(changes, start_ns, key=lambda change: change[0]) - 1
        shapes += changes[index][1] if index >= 0 else []
    return json.dumps(shapes, separators=(",", ":")) if shapes else None


def _memory(notes: ProgramNotes, iteration: Iteration) -> dict[str, int | None]:
    own, workers = _last_in(notes.memory, iteration), _last_in(notes.workers_memory, iteration)
    return {"rss_bytes": own and own[1], "allocated_bytes": own and own[2], "workers_bytes": workers and workers[1]}


def _last_in(samples: Sequence[Any], iteration: Iteration) -> Any:
    index = bisect_right(samples, iteration.end_ns, key=lambda sample: sample[0]) - 1
    return samples[index] if index >= 0 and samples[index][0] > iteration.start_ns else None


def _collections_s(notes: ProgramNotes, iteration: Iteration) -> float | None:
    """Return the time of the garbage collections in an iteration; None without any."""
    begin = bisect_right(notes.collections, iteration.start_ns, key=lambda collection: collection[1])
    total_ns = 0
    for begin_ns, end_ns in notes.collections[begin:]:
        if begin_ns >= iteration.end_ns:
            break
        total_ns += min(end_ns, iteration.end_ns) - max(begin_ns, iteration.start_ns)
    return total_ns / 1e9 if total_ns > 0 else None


def _times(iteration: Iteration) -> dict[str, float | None]:
    """Return the columns with the host times of an iteration."""
    seconds = {row["phase"]: row["host_s"] for row in iteration_rows([iteration])}
    compile_ns = sum(each.host_ns for each in iteration.intervals if each.compiling)
    return {"wall_s": iteration.host_ns / 1e9, "compile_s": compile_ns / 1e9 if compile_ns else None,
            **{f"{phase}_s": seconds.get(phase) for phase in PHASES}}
