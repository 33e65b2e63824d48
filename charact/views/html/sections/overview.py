"""The first section: every case's headline numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.bricks import run_tables
from charact.analysis.common.pass_status import missed_precision, pass_reason, was_asked_for
from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.memory.composition import is_memory_run, memory_peaks
from charact.analysis.operations.timings import operation_cases, operation_times, suite_totals
from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.training.stages import inference_breakdown, inference_summary, stage_breakdown, training_summary
from charact.record.reader import Run
from charact.views.html.elements.blocks import (
    CASE,
    ITERATION,
    PEAK,
    RATE,
    SAMPLES,
    STATUS,
    Block,
    Body,
    Card,
    Legend,
    failure_of,
    legend_of,
    status_reason,
)
from charact.views.html.sections import brick_models, bricks, inference, memory_overview, operation_tables, training
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table


def glance(run: Run) -> Body:
    """A card a case, then the same numbers as tables."""
    cases = case_summary(run)
    if cases.empty:
        return Body(lead=fmt.no_cases(run.partial))
    cards: list[Card] = []
    legend: Legend = []
    blocks: list[Block] = []
    for kind in ("profile", "training", "inference", "memory", "operation", "bricks", "construction"):
        if kind in set(cases["kind"]):
            more, colors, shown = _KINDS[kind](run, cases[cases["kind"] == kind])
            cards, legend, blocks = [*cards, *more], [*legend, *colors], [*blocks, Block(table=shown)]
    failed = int((cases["status"] != "ok").sum())
    lead = f"{_counted(len(cases), 'case')}, {failed} of them failed." if failed else ""
    if is_memory_run(run):
        lead = f"{lead} {memory_overview.LEAD}".strip()
    return Body(lead=lead, cards=cards, legend=list(dict.fromkeys(legend)), blocks=blocks)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _profiles(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    phases = phase_breakdown(run)
    verdicts = {row.case: fmt.verdict(row) for row in fmt.rows(bottlenecks(run))}
    cards = [_card(run, case, phases[phases["case"] == case["case"]], verdicts[str(case["case"])])
             for _, case in cases.iterrows()]
    return cards, legend_of(phases["phase"], palette.PHASES), _table(run, cases)


def _trainings(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    parts = stage_breakdown(run)
    summary = training_summary(run)
    return training.cards(summary, parts), legend_of(parts["stage"], palette.STAGES), training.headlines(summary)


def _inferences(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    parts = inference_breakdown(run)
    summary = inference_summary(run)
    legend = legend_of(parts["part"], palette.INFERENCE_PARTS)
    return inference.cards(summary, parts), legend, inference.headlines(summary)


def _memories(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    return *memory_overview.cards(run), memory_overview.headlines(memory_peaks(run))


def _operations(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    totals, problems = suite_totals(run), operation_cases(run)
    most = operation_tables.NUM_CARDS
    note = f"Of {len(problems)} problems the {most} longest have a card." if len(problems) > most else ""
    shown = operation_tables.totals(totals) if len(totals) else operation_tables.headlines(problems, note=note)
    return operation_tables.cards(run), operation_tables.directions(operation_times(run)), shown


def _suites(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    legend = bricks.legend_of_types(run_tables.brick_types(run))
    return bricks.suite_cards(run), legend, bricks.suites(run_tables.suite_summary(run))


def _models(run: Run, cases: pd.DataFrame) -> tuple[list[Card], Legend, Table]:
    return brick_models.cards(run)


_KINDS: dict[str, Callable[[Run, pd.DataFrame], tuple[list[Card], Legend, Table]]] = {
    "profile": _profiles, "training": _trainings, "inference": _inferences, "memory": _memories,
    "operation": _operations, "bricks": _suites, "construction": _models,
}  # fmt: skip


def _card(run: Run, case: "pd.Series[Any]", phases: pd.DataFrame, verdict: str) -> Card:
    name = str(case["case"])
    if failure := failure_of(case["status"], case["reason"]):
        return Card(name, failure=failure)
    timing, flop, memory = (pass_reason(run, name, each) for each in ("timing", "flop", "memory"))
    few = timing or "fewer than 6 iterations"
    passes = {"samples/s": "timing", "rate": "flop", "peak memory": "memory"}
    numbers = [
        ("samples/s", fmt.number(case["samples_per_s"], timing or fmt.no_samples(case["batch_size"]))),
        ("rate", fmt.flop_rate(case["flop_per_s"], flop or timing)),
        ("peak memory", fmt.num_bytes(case["peak_bytes"], memory)),
    ]
    compiled = [] if pd.isna(case["compile_s"]) else [f"compiled in {fmt.duration(case['compile_s'])}"]
    return Card(
        name,
        headline=(fmt.seconds(case["median_s"], timing), "per iteration"),
        details=[f"95 % interval {fmt.interval(case['low_s'], case['high_s'], few)}", *compiled,
                 f"Bottleneck: {verdict}"],
        warning=fmt.missed_precision(missed_precision(run, name)),
        numbers=[number for number in numbers if was_asked_for(run, passes[number[0]])],
        bar=[
            (phase, float(share_frac), palette.PHASES[phase])
            for phase, share_frac in zip(phases["phase"].astype(str), phases["share_frac"], strict=True)
        ],
    )


def _few(row: object) -> str | None:
    """Why an interval or a percentile is missing."""
    return status_reason(row) or "fewer than 6 iterations"


def _reason_of(run: Run, name: str) -> Callable[[Any], str | None]:
    """Why a number of a pass is missing."""
    return lambda row: status_reason(row) or pass_reason(run, row.case, name)


_FLOP = Column("flop", "FLOP", fmt.num_flop, "counted per iteration, 1 MAC = 2 FLOP", status_reason)


def _table(run: Run, cases: pd.DataFrame) -> Table:
    flop = was_asked_for(run, "flop")
    of_passes = [replace(column, reason=_reason_of(run, name)) for column, name in ((RATE, "flop"), (PEAK, "memory"))
                 if was_asked_for(run, name)]
    columns = [
        CASE, STATUS, ITERATION, SAMPLES, *of_passes,
        Column("low_s", "95 % from", fmt.seconds, "lower end of the 95 % interval of the median", _few),
        Column("high_s", "95 % to", fmt.seconds, "upper end of the 95 % interval of the median", _few),
        Column("p5_s", "p5", fmt.seconds, "5 % of iterations were faster", status_reason),
        Column("p95_s", "p95", fmt.seconds, "5 % of iterations were slower", status_reason),
        Column("num_iterations", "Iterations", fmt.number, "timed iterations", status_reason),
        *([_FLOP] if flop else []),
        Column("num_parameters", "Parameters", fmt.number, "of the model",
               lambda row: status_reason(row) or "the program does not tell its model"),
    ]  # fmt: skip
    return table(cases, "Headline numbers of each case", columns)
