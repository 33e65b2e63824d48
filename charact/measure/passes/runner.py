"""Runner of cases: one pass per instrument; a failure affects only its pass or its case."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from charact.core.observer import Observer
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry, one_line
from charact.execution.interrupt import Interrupt
from charact.execution.loop import Loop
from charact.execution.lora import num_trainable
from charact.measure.case_loop import ending_of, run_each
from charact.measure.counters._support.protocol import CounterSource
from charact.measure.passes.counters import counter_pass
from charact.measure.passes.flops import flop_pass
from charact.measure.passes.kernel_marks import kernel_marks
from charact.measure.passes.marks import layer_rows
from charact.measure.passes.memory_pass import memory_pass
from charact.measure.passes.operators import attribute_flop, operator_pass
from charact.measure.passes.timing import StopRule, Timing, timing_pass
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import (
    UNRELIABLE_FRAC,
    CountersPass,
    FlopPass,
    MemoryPass,
    OperatorsPass,
    Pass,
    SourceOutcome,
)
from charact.record.schema import Rows
from charact.record.writer import RunWriter
from charact.traces.counters import outcome

PASSES = ("timing", "operators", "kernels", "memory", "flop", "counters")


def run_cases(cases: Sequence[Case], rule: StopRule, writer: RunWriter, observer: Observer, interrupt: Interrupt,
              sources: Sequence[CounterSource] = (), passes: Collection[str] = PASSES) -> None:
    """Run the passes over each case and write it to the record; errors and signals: see `run_each`.

    Timing is always taken. Without `sources` there is no counter pass. The first case is timed again if other programs
    made it unreliable, such as the end of an installation.
    """
    def run(case: Case) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        case_run = _CaseRun(case, rule, sources, passes, writer.trace_path(case.id), observer,
                            is_first=case is cases[0])
        return [case_run.run(interrupt)]

    run_each(cases, run, writer, observer, interrupt)


def rule_of(case: Case, rule: StopRule) -> StopRule:
    """Return the rule for a case: a decoding goes through all words, since the later ones may take longer."""
    num_words = max(case.output_size - 1, 0) if case.mode == "decode" else 0
    return replace(rule, min_iterations=max(rule.min_iterations, num_words),
                   max_iterations=max(rule.max_iterations, num_words))


def _in_measured_layers(counts: Rows, operators: Rows) -> Rows:
    """Return counts of compiled code, each in a layer that has a kernel of its phase and operator type.

    If its own layer has none, it is the layer of the longest such kernel: a fused one may belong to an outer layer.
    """
    by_time = sorted(operators, key=lambda row: (row["device_s"] or 0.0, row["self_host_s"]))
    longest = {(row["phase"], row["operator_type"]): row["layer"] for row in by_time}
    places = {(row["phase"], row["operator_type"], row["layer"]) for row in operators}
    return [count if (*kind, count["layer"]) in places else count | {"layer": longest.get(kind)}
            for count in counts for kind in [(count["phase"], count["operator_type"])]]


def _lost_frac(timing: Timing) -> float:
    """Return the share of the wanted processor time that other programs took; 0 if it is not known."""
    use = timing.facts.core_use
    return (use.lost_frac if use is not None else None) or 0.0


class _CaseRun:
    """The passes over one case, and their results: a manifest entry and table rows."""

    def __init__(self, case: Case, rule: StopRule, sources: Sequence[CounterSource], passes: Collection[str],
                 trace_path: Path, observer: Observer, *, is_first: bool) -> None:
        self._case, self._rule, self._sources, self._wanted = case, rule, sources, passes
        self._trace_path, self._observer, self._is_first = trace_path, observer, is_first
        self._tables: dict[str, Rows] = {}
        self._from_trace: Rows = []
        self._marks_kernels: bool | None = None
        self._entry = case_entry(case)
        self._passes = self._entry.passes

    def run(self, interrupt: Interrupt) -> tuple[CaseEntry, dict[str, Rows]]:
        ending = ending_of(self._run_passes, self._case.device, self._case.precision, interrupt)
        if ending is not None:
            self._entry.update(**ending)
            for name in PASSES:
                self._passes.end(name, "skipped", ending["reason"])
            self._tables.clear()
            self._trace_path.unlink(missing_ok=True)
        return self._entry, self._tables

    def _run_passes(self) -> None:
        if self._case.device.type == "cuda":
            torch.cuda.set_device(self._case.device)  # the loader pins memory for the current one
        if self._case.compiled:
            torch.compiler.reset()  # so that each case is compiled separately, and its compilation is timed
        loop = Loop(self._case)
        try:
            with kernel_marks(loop.model) if self._case.compiled else contextlib.nullcontext() as self._marks_kernels:
                self._passes_over(loop)
        finally:
            loop.close()

    def _passes_over(self, loop: Loop) -> None:
        self._entry.num_parameters = sum(parameter.numel() for parameter in loop.model.parameters())
        if self._case.training and (trainable := num_trainable(loop.model)) < self._entry.num_parameters:
            self._entry.num_trainable_parameters = trainable
        self._tables["layers"] = layer_rows(loop.model)
        self._observer.pass_started("timing")
        rule = rule_of(self._case, self._rule)
        timing = timing_pass(loop, rule, self._observer.iteration)
        if self._is_first and not self._case.compiled and _lost_frac(timing) >= UNRELIABLE_FRAC:
            timing = min(timing, timing_pass(loop, rule, self._observer.iteration), key=_lost_frac)
        self._tables["iterations"] = timing.rows
        self._passes["timing"] = timing.facts
        self._entry.facts = loop.workload.facts()
        self._optional("operators", lambda: self._operators(loop))
        self._passes["kernels"] = (
            Pass("skipped", "kernels run on GPUs only") if self._case.device.type != "cuda"
            else Pass(self._passes.operators.status, self._passes.operators.reason))
        self._optional("memory", lambda: self._memory(loop))
        self._optional("flop", lambda: self._flop(loop))
        if self._sources or "counters" not in self._wanted:
            self._optional("counters", lambda: self._counters(loop))
        else:
            self._passes["counters"] = CountersPass("skipped", "not asked for: --counters auto")

    def _operators(self, loop: Loop) -> OperatorsPass:
        result = operator_pass(loop, self._trace_path)
        self._tables |= {"operators": result.operator_rows, "kernels": result.kernel_rows}
        self._from_trace = result.counter_rows
        iteration_s, median_s = result.facts.iteration_s, self._passes.timing.median_s
        if iteration_s is not None and median_s:
            result.facts.overhead_ratio = iteration_s / median_s
        result.facts.kernel_layers = self._marks_kernels
        return result.facts

    def _memory(self, loop: Loop) -> MemoryPass:
        self._tables["memory"], facts = memory_pass(loop)
        return facts

    def _flop(self, loop: Loop) -> FlopPass:
        self._tables["flop"], facts = flop_pass(self._case, loop.next_batch())
        counts = self._tables["flop"]
        operators = self._tables.get("operators", [])
        if self._case.compiled:
            counts = _in_measured_layers(counts, operators)
        facts.update(**attribute_flop(operators, counts))
        return facts

    def _counters(self, loop: Loop) -> CountersPass:
        from_trace = [source.name for source in self._sources if source.taken == "trace"]
        self._tables["counters"] = list(self._from_trace) if from_trace else []
        rows, facts = counter_pass(loop, self._sources)
        self._tables["counters"] += rows
        facts.sources |= dict.fromkeys(from_trace, msgspec.convert(
            outcome(self._from_trace, self._passes.kernels.reason), SourceOutcome))
        return facts

    def _optional(self, name: str, take: Callable[[], Pass]) -> None:
        if name not in self._wanted:
            self._passes.end(name, "skipped", f"not asked for: --passes {name}")
            return
        self._observer.pass_started(name)
        try:
            self._passes[name] = take()
        except Exception as error:
            self._passes.end(name, "failed", one_line(error, self._case.precision))
