"""Rows of the table `program_iterations`: every iteration of a watched program. No torch in here."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from charact.measure.script.spans.iterations import Interval, Iteration
from charact.record.schema import PHASES, Rows


class ProgramNotes:
    """Notes of an event log on what happened in the iterations besides spans."""

    def __init__(self) -> None:
        self.began_ns: int | None = None
        """Time at which charact began to watch the program; None in the logs of older versions."""
        self._shapes: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        """Times and shapes of the inputs of each model, by its owner ID, where they changed."""
        self._starts: set[tuple[int, int]] = set()
        """Iterator's owner ID and time of the first fetch, of each start of a loader."""

    def add(self, note: dict[str, Any]) -> None:
        """Add a note of the event log if it is one of these."""
        if note["note"] == "began":
            self.began_ns = note["time_ns"]
        elif note["note"] == "input shapes":
            for time_ns, owner, shapes in note["rows"]:
                self._shapes[owner].append((time_ns, shapes))
        elif note["note"] == "epochs":
            self._starts |= {(owner, fetch_ns) for _, _, owner, fetch_ns, _ in note["rows"]}

    def rows(self, every: Sequence[Iteration], kinds: Mapping[int, tuple[str, int | None]]) -> Rows:
        """Return the rows of a case.

        Args:
            every: all iterations of the program, in order.
            kinds: kind of each iteration of the case, and its index in the table `iterations`, by its index in `every`.
        """
        if not every:
            return []
        began_ns = every[0].start_ns if self.began_ns is None else self.began_ns
        firsts = self._firsts_of_epochs(every)
        return [
            {"index": index, "kind": kind, "iteration": number, "start_s": (every[index].start_ns - began_ns) / 1e9,
             "first_of_epoch": int(index in firsts), "input_shapes": self._input_shapes(every[index]),
             **_times(every[index])}
            for index, (kind, number) in kinds.items()
        ]

    def _firsts_of_epochs(self, every: Sequence[Iteration]) -> set[int]:
        """Return the indices of the iterations whose first batch is the first since its loader was started.

        Starts are not known of the batches of `Profiler.iterate`, nor in the logs of older versions: there, the first
        batch of an iterator counts.
        """
        firsts: set[int] = set()
        known: set[int] = set()
        for index, iteration in enumerate(every):
            fetches = [one for one in iteration.intervals if one.phase == "data" and one.owner]
            if fetches and self._is_first(fetches[0], known):
                firsts.add(index)
            known |= {one.owner for one in fetches}
        return firsts

    def _is_first(self, fetch: Interval, known: set[int]) -> bool:
        if fetch.owner > 0 and self._starts:
            return (fetch.owner, fetch.start_ns) in self._starts
        return fetch.owner not in known

    def _input_shapes(self, iteration: Iteration) -> str | None:
        """Return the shapes of the inputs of each model's first call in an iteration, as JSON; None if not known."""
        first_ns: dict[int, int] = {}
        for one in iteration.intervals:
            if one.phase == "forward" and one.owner:
                first_ns.setdefault(one.owner, one.start_ns)
        shapes: list[Any] = []
        for owner, start_ns in first_ns.items():
            changes = self._shapes.get(owner, [])
            index = bisect_right(changes, start_ns, key=lambda change: change[0]) - 1
            shapes += changes[index][1] if index >= 0 else []
        return json.dumps(shapes, separators=(",", ":")) if shapes else None


def _times(iteration: Iteration) -> dict[str, float | None]:
    """Return the columns with the host times of an iteration."""
    host_ns: dict[str, int] = defaultdict(int)
    compile_ns = 0
    for one in iteration.intervals:
        host_ns[one.phase] += one.end_ns - one.start_ns
        compile_ns += one.end_ns - one.start_ns if one.compiling else 0
    wall_ns = iteration.end_ns - iteration.start_ns
    host_ns["other"] += wall_ns - sum(host_ns.values())
    return {"wall_s": wall_ns / 1e9, "compile_s": compile_ns / 1e9 if compile_ns else None,
            **{f"{phase}_s": host_ns[phase] / 1e9 if phase in host_ns else None for phase in PHASES}}
