"""Times, settings and all iterations of a whole watched program. No torch in here."""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from charact.core.timeline import Iteration, iteration_rows
from charact.measure.script.program.notes import ProgramNotes
from charact.measure.script.spans.pass_results import PassNotes
from charact.measure.script.spans.recorder import Kind, Slice
from charact.record.manifest_program import OwnTime, ProgramFacts, ProgramSettings
from charact.record.schema import PHASES, Rows

_MOST = 20
"""Largest number of models, optimizers and loaders that are recorded, each."""
_MOST_STARTS = 50
"""Largest number of starts of a loader whose times are recorded."""

_ENDS_INFERENCE = frozenset({Kind.FETCH, Kind.EXHAUSTED, Kind.END})


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
        self._undecided: Counter[int] = Counter()
        for one in slices:
            self._add(one)
        self.inference_with_grad += self._undecided

    def _add(self, one: Slice) -> None:
        if one.kind in _ENDS_INFERENCE:
            self.inference_with_grad += self._undecided
            self._undecided.clear()
            self.fetches[one.owner] += one.kind is Kind.FETCH and one.ends
            self.fetch_ns[one.owner] += one.end_ns - one.start_ns
        elif one.kind is Kind.BACKWARD:
            self._undecided.clear()
        elif one.kind is Kind.FORWARD and one.begins and one.owner:
            self.calls[one.owner] += 1
            if one.grad and one.training:
                self.inference_with_grad[one.owner] += self._undecided.pop(one.owner, 0)
            elif one.grad:
                self._undecided[one.owner] += 1


def program_times(notes: ProgramNotes, span_ns: tuple[int, int] | None, iterations: Sequence[Iteration],
                  passes: PassNotes) -> ProgramFacts:
    """Return the times (s) of a program, see `ProgramFacts`; only charact's own time if its end was not recorded.

    Charact's own time is that of its start, and that of its passes less a median iteration for each of theirs. Other
    times do not contain it.
    """
    facts = ProgramFacts(own_s=OwnTime(notes.own_start_ns / 1e9, 0.0))
    if span_ns is None or not iterations:
        return facts
    begin_ns, first_ns = span_ns[0] + notes.own_start_ns, iterations[0].start_ns
    end_ns: float = span_ns[1]
    last_ns: float = iterations[-1].end_ns
    inside_ns: float = sum(each.host_ns for each in iterations)
    if spans := passes.spans_ns:
        timed = passes.timed(iterations)
        typical_ns = _typical_ns(timed, iterations)
        # Without charact, all that follows the passes would have happened earlier, by their own time.
        passes_own_ns = sum(end - begin for begin, end in spans) - typical_ns
        facts.own_s = OwnTime(notes.own_start_ns / 1e9, max(0, passes_own_ns) / 1e9)
        last_ns, end_ns = max(last_ns, *(end for _, end in spans)) - passes_own_ns, end_ns - passes_own_ns
        inside_ns = sum(each.host_ns for each in timed) + typical_ns
    facts.duration_s, facts.before_s = (end_ns - begin_ns) / 1e9, max(first_ns - begin_ns, 0) / 1e9
    facts.between_s = max(last_ns - first_ns - inside_ns, 0) / 1e9
    facts.after_s = max(end_ns - last_ns, 0) / 1e9
    return facts


def _typical_ns(timed: Sequence[Iteration], every: Sequence[Iteration]) -> float:
    """Return the time that the iterations of passes would have taken: for each, the median of its mode."""
    total_ns = 0.0
    for training in (True, False):
        walls_ns = [each.host_ns for each in timed if each.training == training]
        num_in_passes = sum(one.training == training for one in every) - len(walls_ns)
        total_ns += num_in_passes * median(walls_ns) if walls_ns else 0
    return total_ns


def settings_facts(notes: ProgramNotes, owners: Mapping[int, dict[str, Any]], names: Mapping[int, str],
                   totals: SliceTotals) -> ProgramSettings | None:
    """Return the settings of a program, see `ProgramSettings`; None if its log has none."""
    if notes.process is None:
        return None
    inner = {part for one in owners.values() if one["kind"] == "model" for part in one.get("parts", ())}
    models = [_model(notes, owner, facts, names[owner], totals) for owner, facts in owners.items()
              if facts["kind"] == "model" and "settings" in facts and totals.calls[owner] and owner not in inner]
    optimizers = [{"name": names[owner], "class": facts["class"], **facts["settings"],
                   "models": [names[model] for model in facts["models"] if model in names]}
                  for owner, facts in owners.items() if facts["kind"] == "optimizer" and "settings" in facts]
    anomaly_frac = min(1.0, notes.num_anomalous / notes.num_backwards) if notes.num_backwards else None
    return msgspec.convert({
        **notes.process, "anomaly_frac": anomaly_frac, "num_backwards": notes.num_backwards or None,
        "create_graph": notes.create_graph, "models": models[:_MOST], "optimizers": optimizers[:_MOST],
        "loaders": _loaders(notes, totals)[:_MOST]}, ProgramSettings)


def _model(notes: ProgramNotes, owner: int, facts: dict[str, Any], name: str, totals: SliceTotals) -> dict[str, Any]:
    settings = {key: value for key, value in facts["settings"].items() if key not in ("num_hooks", "num_modules")}
    sizes = notes.sizes.get(owner, [])
    first, last = sizes[0] if sizes else (None, None), sizes[-1] if len(sizes) > 1 else (None, None)
    num_rows, num_repeated = notes.frozen_rows.get(owner, (None, None))
    return {"name": name, **settings, "num_parameters": facts["num_parameters"],
            "num_hooks_first": first[0], "num_hooks_last": last[0],
            "num_modules_first": first[1], "num_modules_last": last[1],
            "calls": totals.calls[owner], "inference_with_grad": totals.inference_with_grad[owner],
            "num_frozen_rows": num_rows, "num_repeated_rows": num_repeated}


def _loaders(notes: ProgramNotes, totals: SliceTotals) -> list[dict[str, Any]]:
    """Return settings and use of the loaders; loaders with equal settings from the same line are one entry."""
    groups: list[tuple[dict[str, Any], set[int]]] = []
    for number, settings in notes.loaders.items():
        group = next((group for known, group in groups if known == settings), None)
        if group is None:
            groups.append((settings, {number}))
        else:
            group.add(number)
    entries = []
    for settings, numbers in groups:
        starts = [start for start in notes.starts if start.loader in numbers]
        iterators = {start.owner for start in starts}
        wait_ns = sum(start.ready_ns - start.begin_ns for start in starts) + sum(
            totals.fetch_ns[owner] for owner in iterators)
        fetch_ns = sum(notes.worker_fetch_ns.get(number, 0) for number in numbers)
        entries.append(settings | {
            "num_iterators": len(starts), "num_batches": sum(totals.fetches[owner] for owner in iterators),
            "start_s": [max(0, start.end_ns - start.begin_ns) / 1e9 for start in starts[:_MOST_STARTS]],
            "wait_s": max(0, wait_ns) / 1e9, "worker_fetch_s": fetch_ns / 1e9 if fetch_ns else None})
    return entries


def program_iteration_rows(notes: ProgramNotes, every: Sequence[Iteration], of_case: Sequence[Iteration],
                           timed: Sequence[Iteration], undisturbed: Sequence[Iteration]) -> Rows:
    """Return rows of the table `program_iterations` for a case.

    Args:
        notes: notes of the program's event log.
        every: all iterations of the program, in order.
        of_case: the iterations of the case.
        timed: the case's iterations in the table `iterations`; at least one.
        undisturbed: the case's iterations in which no other pass measured.
    """
    began_ns = every[0].start_ns if notes.began_ns is None else notes.began_ns
    indices = {id(iteration): index for index, iteration in enumerate(every)}
    numbers = {id(iteration): number for number, iteration in enumerate(timed)}
    without_passes = set(map(id, undisturbed))
    firsts = _firsts_of_epochs(notes, every)
    rows: Rows = []
    for iteration in of_case:
        index, is_timed = indices[id(iteration)], id(iteration) in numbers
        is_warmup = not is_timed and iteration.start_ns < timed[0].start_ns
        seconds = {row["phase"]: row["host_s"] for row in iteration_rows([iteration])}
        compile_ns = sum(each.host_ns for each in iteration.intervals if each.compiling)
        memory, workers = _last_in(notes.memory, iteration), _last_in(notes.workers_memory, iteration)
        rows.append({
            "index": index, "iteration": numbers.get(id(iteration)),
            "kind": "pass" if id(iteration) not in without_passes else "warm-up" if is_warmup else "timed",
            "start_s": (iteration.start_ns - began_ns) / 1e9, "first_of_epoch": int(index in firsts),
            "input_shapes": _input_shapes(notes, iteration),
            "wall_s": iteration.host_ns / 1e9, "compile_s": compile_ns / 1e9 if compile_ns else None,
            **{f"{phase}_s": seconds.get(phase) for phase in PHASES},
            "rss_bytes": memory and memory[1], "allocated_bytes": memory and memory[2],
            "workers_bytes": workers and workers[1], "gc_s": _collections_s(notes, iteration),
        })
    return rows


def _firsts_of_epochs(notes: ProgramNotes, every: Sequence[Iteration]) -> set[int]:
    """Return the indices of the iterations whose first batch is the first since its loader was started.

    Logs of older versions, and those of `Profiler.iterate`, have no starts of loaders: there, the first batch of each
    iterator counts.
    """
    starts = {(start.owner, start.fetch_ns) for start in notes.starts}
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
