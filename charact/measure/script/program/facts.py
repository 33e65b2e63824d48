"""Times and settings of a whole watched program, for run.json. No torch in here."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from charact.core.timeline import Iteration
from charact.measure.script.program.notes import ProgramNotes
from charact.measure.script.spans.pass_results import Passes
from charact.measure.script.spans.recorder import Kind, Slice

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


def program_times(notes: ProgramNotes, span_ns: tuple[int, int] | None, iterations: Sequence[Iteration], passes: Passes
                  ) -> dict[str, Any]:
    """Return the times (s) of a program, see `ProgramFacts`; only charact's own time if its end was not recorded.

    Charact's own time is that of its start, and that of its passes less a median iteration for each of theirs. Other
    times do not contain it.

    Args:
        notes: notes of the program's event log.
        span_ns: start and end of the program; None if not known.
        iterations: all iterations.
        passes: results of the passes.
    """
    own_ns = {"start": notes.own_start_ns, "passes": 0.0}
    times: dict[str, float] = {}
    if span_ns is not None and iterations:
        begin_ns, first = span_ns[0] + notes.own_start_ns, iterations[0]
        end_ns: float = span_ns[1]
        last_ns: float = iterations[-1].end_ns
        inside_ns: float = sum(each.host_ns for each in iterations)
        if spans := passes.spans_ns:
            timed = passes.timed(iterations)
            typical_ns = _typical_ns(timed, iterations)
            # Without charact, all that follows the passes would have happened earlier, by their own time.
            passes_own_ns = sum(end - begin for begin, end in spans) - typical_ns
            own_ns["passes"] = max(0, passes_own_ns)
            last_ns, end_ns = max(last_ns, *(end for _, end in spans)) - passes_own_ns, end_ns - passes_own_ns
            inside_ns = sum(each.host_ns for each in timed) + typical_ns
        times = {"duration_s": end_ns - begin_ns, "before_s": max(first.start_ns - begin_ns, 0),
                 "between_s": max(last_ns - first.start_ns - inside_ns, 0), "after_s": max(end_ns - last_ns, 0)}
    return {"own_s": {name: ns / 1e9 for name, ns in own_ns.items()}, **{name: ns / 1e9 for name, ns in times.items()}}


def _typical_ns(timed: Sequence[Iteration], every: Sequence[Iteration]) -> float:
    """Return the time that the iterations of passes would have taken: for each, the median of its mode."""
    total_ns = 0.0
    for training in (True, False):
        walls_ns = [each.host_ns for each in timed if each.training == training]
        num_in_passes = sum(one.training == training for one in every) - len(walls_ns)
        total_ns += num_in_passes * median(walls_ns) if walls_ns else 0
    return total_ns


def settings_facts(notes: ProgramNotes, owners: Mapping[int, dict[str, Any]], names: Mapping[int, str],
                   totals: SliceTotals) -> dict[str, Any] | None:
    """Return the settings of a program, see `ProgramSettings`; None if its log has none.

    Args:
        notes: notes of the program's event log.
        owners: facts of its models and optimizers, by owner ID.
        names: names of the owners, by owner ID.
        totals: totals of its spans.
    """
    if notes.process is None:
        return None
    inner = {part for one in owners.values() if one["kind"] == "model" for part in one.get("parts", ())}
    models = [_model(notes, owner, facts, names[owner], totals) for owner, facts in owners.items()
              if facts["kind"] == "model" and "settings" in facts and totals.calls[owner] and owner not in inner]
    optimizers = [_optimizer(facts, names[owner], [names[model] for model in facts["models"] if model in names])
                  for owner, facts in owners.items() if facts["kind"] == "optimizer" and "settings" in facts]
    anomaly_frac = min(1.0, notes.num_anomalous / notes.num_backwards) if notes.num_backwards else None
    return {**notes.process, "anomaly_frac": anomaly_frac, "num_backwards": notes.num_backwards or None,
            "create_graph": notes.create_graph, "models": models[:_MOST], "optimizers": optimizers[:_MOST],
            "loaders": _loaders(notes, totals)[:_MOST]}


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


def _optimizer(facts: dict[str, Any], name: str, models: list[str]) -> dict[str, Any]:
    return {"name": name, "class": facts["class"], **facts["settings"], "models": models}


def _loaders(notes: ProgramNotes, totals: SliceTotals) -> list[dict[str, Any]]:
    """Return the settings of the loaders; loaders with equal settings from the same line are one entry."""
    groups: list[tuple[dict[str, Any], set[int]]] = []
    for number, settings in notes.loaders.items():
        group = next((group for known, group in groups if known == settings), None)
        if group is None:
            groups.append((settings, {number}))
        else:
            group.add(number)
    return [settings | _use(notes, numbers, totals) for settings, numbers in groups]


def _use(notes: ProgramNotes, loaders: set[int], totals: SliceTotals) -> dict[str, Any]:
    """Return how often loaders were started, and how long the program waited for them."""
    starts = [one for one in notes.starts if one.loader in loaders]
    iterators = {one.owner for one in starts}
    wait_ns = sum(one.ready_ns - one.begin_ns for one in starts) + sum(totals.fetch_ns[one] for one in iterators)
    fetch_ns = sum(notes.worker_fetch_ns.get(loader, 0) for loader in loaders)
    return {"num_iterators": len(starts), "num_batches": sum(totals.fetches[one] for one in iterators),
            "start_s": [max(0, one.end_ns - one.begin_ns) / 1e9 for one in starts[:_MOST_STARTS]],
            "wait_s": max(0, wait_ns) / 1e9, "worker_fetch_s": fetch_ns / 1e9 if fetch_ns else None}
