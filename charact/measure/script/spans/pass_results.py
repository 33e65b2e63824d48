"""Results of a profiled program's passes: from notes of the event log to its case. No torch in here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from charact.core.timeline import Iteration
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import PASSES, FlopPass, Pass, SourceOutcome
from charact.record.schema import Rows
from charact.traces.counters import SOURCE, outcome

_NO_GPU = "kernels run on GPUs only"
_COMPILED = "compiled code has no operators to count: run charact profile --compile on the model"


@dataclass
class PassNotes:
    """Notes of the passes that followed the timing."""

    timing_ended_ns: int | None = None
    """Start of the first pass's warm-up; None without passes."""
    timing_resumed_ns: int | None = None
    """End of the last pass, if iterations after it were timed again."""
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Result of each pass, by name."""
    evaluation_notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Result of each pass on an evaluation inside of a training, by name."""
    evaluation_spans_ns: list[tuple[int, int]] = field(default_factory=list)
    """Starts and ends of what these passes measured."""
    damaged: bool = False
    """Whether the event log is damaged, so that notes may be missing."""

    def add(self, note: dict[str, Any]) -> None:
        """Add a note of the event log if it belongs to a pass."""
        if note["note"] == "timing ended":
            self.timing_ended_ns = note["time_ns"]
        elif note["note"] == "timing resumed":
            self.timing_resumed_ns = note["time_ns"]
        elif note["note"] == "evaluation measured":
            begin_ns, end_ns = note["span_ns"]
            self.evaluation_spans_ns.append((begin_ns, end_ns))
        elif note["note"] == "pass":
            (self.evaluation_notes if note.get("mode") == "infer" else self.notes)[note["pass"]] = note

    @property
    def spans_ns(self) -> list[tuple[int, int]]:
        """Starts and ends of all that passes measured; empty without passes, or if they did not end."""
        if self.timing_ended_ns is None:
            return []
        ends = [end_ns for note in self.notes.values() for _, end_ns in note["windows"]]
        end_ns = max(ends, default=None) if self.timing_resumed_ns is None else self.timing_resumed_ns
        return [] if end_ns is None else [(self.timing_ended_ns, end_ns), *self.evaluation_spans_ns]

    def timed(self, iterations: Sequence[Iteration]) -> list[Iteration]:
        """Return the iterations in which no pass measured."""
        if self.timing_ended_ns is None:
            return list(iterations)
        return [each for each in iterations if (each.end_ns <= self.timing_ended_ns
                or (self.timing_resumed_ns is not None and each.start_ns >= self.timing_resumed_ns))
                and not any(each.start_ns < end_ns and begin_ns < each.end_ns
                            for begin_ns, end_ns in self.evaluation_spans_ns)]

    def add_to(self, entry: CaseEntry, tables: dict[str, Rows], asked_for: Sequence[str],
               iterations: Sequence[Iteration]) -> None:
        """Add the requested passes, with their tables and iterations, to a case with these iterations, timed or not."""
        for name in asked_for:
            note = self.notes.get(name)
            if note is None:
                reason = "its event log is damaged" if self.damaged else "the program was killed"
                entry.passes[name] = PASSES[name]("failed", f"{reason} before this pass had ended")
            else:
                _add(note, entry, tables, iterations)
        if "operators" in asked_for:
            _add_to_operators(self.notes.get("operators", {}), entry)
        if "counters" in asked_for and entry.passes.counters.status == "ok":
            rows = [row for row in tables["counters"] if row["source"] == SOURCE]
            if entry.device == "cpu":
                ended = outcome(rows, _NO_GPU)
            elif "operators" in entry.passes:
                ended = outcome(rows, entry.passes.operators.reason)
            else:
                ended = outcome(rows, "read from the operator pass's trace", "--passes operators,counters")
            entry.passes.counters.sources[SOURCE] = msgspec.convert(ended, SourceOutcome)

    def add_to_evaluation(self, entry: CaseEntry, tables: dict[str, Rows], iterations: Sequence[Iteration]) -> None:
        """Add the results of the passes on an evaluation to its case; see `add_to`."""
        for note in self.evaluation_notes.values():
            _add(note, entry, tables, iterations)
        if "operators" in self.evaluation_notes:
            _add_to_operators(self.evaluation_notes["operators"], entry)


def _add(note: dict[str, Any], entry: CaseEntry, tables: dict[str, Rows], iterations: Sequence[Iteration]) -> None:
    """Add a pass to a case, with its tables, and with the indices of the iterations that began in its windows."""
    indices = [number for number, each in enumerate(iterations)
               if any(start_ns <= each.start_ns < end_ns for start_ns, end_ns in note["windows"])]
    name = note["pass"]
    entry.passes[name] = msgspec.convert({"status": note["status"], "reason": note["reason"], "iterations": indices,
                                          **note.get("facts", {})}, PASSES[name])
    for table, rows in note.get("tables", {}).items():
        tables[table] = [*tables.get(table, []), *rows]


def _add_to_operators(note: dict[str, Any], entry: CaseEntry) -> None:
    """Add the passes that come from that of the operators."""
    passes, operators, work = entry.passes, entry.passes.operators, note.get("facts", {}).get("flop")
    if operators.status != "ok":
        passes["flop"] = FlopPass(operators.status, operators.reason)
    else:
        passes["flop"] = FlopPass("skipped", _COMPILED) if work is None else msgspec.convert(
            {"status": "ok", **work}, FlopPass)
        if operators.iteration_s is not None and passes.timing.median_s:
            operators.overhead_ratio = operators.iteration_s / passes.timing.median_s
    passes["kernels"] = (Pass("skipped", _NO_GPU) if entry.device == "cpu"
                         else Pass(operators.status, operators.reason))
