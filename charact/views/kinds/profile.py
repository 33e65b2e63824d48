"""Profiled cases, measured by passes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import missed_precision, pass_reason, was_asked_for
from charact.analysis.common.script_attribution import (
    attribution,
    blind_spots,
    dropped,
    is_imported,
    memory_ran_out,
    sampled_frames,
    time_outside,
)
from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.efficiency.counters import counter_values
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.analysis.efficiency.kernels import top_kernels
from charact.analysis.efficiency.layers import top_layers
from charact.analysis.efficiency.time_bounds import time_limits
from charact.analysis.efficiency.utilization import busy, energy, utilization
from charact.analysis.findings import findings, has_findings, largest_part
from charact.analysis.memory.composition import memory_composition
from charact.analysis.profile.breakdown import operator_types, phase_breakdown, top_operators
from charact.analysis.profile.case_summary import MIN_SPREAD_ITERATIONS, case_summary, repeated_cases
from charact.analysis.profile.compilations import COUNTS, compile_counts, compile_events, counts_text
from charact.analysis.profile.core_use import Disturbance, disturbance, why_unreliable
from charact.analysis.profile.generation import generations, is_generation
from charact.analysis.profile.serving import serving_gaps, serving_kernels, serving_kinds, serving_limits
from charact.analysis.ranks.collectives import collective_summary
from charact.analysis.ranks.job_rates import job_rates
from charact.analysis.ranks.matching import rank_cases, rank_presence
from charact.analysis.ranks.scaling import CAUSES, case_scaling
from charact.analysis.ranks.stragglers import BALANCED, rank_verdicts
from charact.analysis.ranks.waiting import rank_waits
from charact.record.reader import Run
from charact.record.schema import GENERATING_MODES, SAMPLED_PHASES
from charact.views.case_kind import CaseKind, CasePart, Overview, shown_as, takes
from charact.views.document import Card, Item, Line, Lines, Meter, Number, ShareBar, bar
from charact.views.html.elements.blocks import (
    CASE,
    HFU,
    ITERATION,
    MFU,
    PADDING,
    PEAK,
    RATE,
    RUN,
    SAMPLES,
    STATUS,
    TOKENS,
    failure_of,
    memory_bar,
    status_reason,
)
from charact.views.section import all_sections
from charact.views.tables import counter_text, finding_text, palette, rank_text, serving_text
from charact.views.tables import format as fmt
from charact.views.tables.model import Cell, Column, Table, table

_USED = {
    "flop_per_s": "{} of the best measured FLOP/s", "warp_occupancy_frac": "{} warp occupancy",
    "warp_execution_efficiency_frac": "{} warp execution efficiency",
    "nonpredicated_efficiency_frac": "{} non-predicated efficiency",
    "bandwidth_utilization_frac": "{} of the memory bandwidth",
}  # fmt: skip
"""How a card names each of the five metrics."""


def _with_utilization(run: Run, cases: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `case_summary` with the columns of `flop_utilization`."""
    return cases.merge(flop_utilization(run), on="case", how="left")


def _optional_columns(cases: pd.DataFrame, *columns: Column) -> list[Column]:
    """Return the columns that any case has a number for."""
    return [column for column in columns if cases[column.name].notna().any()]


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    cases = _with_utilization(run, cases)
    verdicts = {row.case: row for row in fmt.rows(bottlenecks(run))}
    waits = {row.case: row for row in fmt.rows(_uneven_ranks(run))}
    cards = [_card(run, row, verdicts[row.case], waits.get(row.case)) for row in fmt.rows(cases)]
    return Overview(_without_shared_reasons(cards), _table(run, cases))


def _uneven_ranks(run: Run) -> pd.DataFrame:
    """Return the rows of `rank_verdicts` of programs whose ranks wait much for each other; `rank` is the straggler."""
    rows = rank_verdicts(run).drop(columns="rank").rename(columns={"straggler": "rank"})
    return rows[rows["verdict"].notna() & (rows["verdict"] != BALANCED)]


def _without_shared_reasons(cards: list[Card]) -> list[Card]:
    """Return cards without the numbers that all of several lack for one reason: the table says it once."""
    whole = [dict(card.numbers) for card in cards if card.failure is None]
    shared = {name for name, text in (whole[0] if len(whole) > 1 else {}).items()
              if fmt.reason_of(text) is not None and all(numbers.get(name) == text for numbers in whole)}
    return [replace(card, numbers=[number for number in card.numbers if number.name not in shared]) for card in cards]


def _card(run: Run, row: Any, verdict: Any, of_ranks: Any) -> Card:
    """Return the card of a case: its time, where it goes, what memory is for, how well the device is used, the verdict.

    `verdict` is the case's row of `bottlenecks`; `of_ranks` its program's row of `stragglers` if the ranks wait much
    for each other, which is then the verdict. What to do is in the answer of the run.
    """
    if failure := failure_of(row.status, row.reason):
        return Card(row.case, failure=failure)
    timing, flop, memory = (pass_reason(run, row.case, name) for name in ("timing", "flop", "memory"))
    numbers = [
        ("timing", Number("samples/s", fmt.number(row.samples_per_s, timing or fmt.no_samples(row.batch_size)))),
        *([] if pd.isna(row.tokens_per_s) else [("timing", Number("tokens/s", fmt.number(row.tokens_per_s)))]),
        *([("timing", Number("padding", f"{fmt.share(row.padding_frac)} of the positions"))] if row.padding_frac > 0
          else []),
        ("flop", Number("FLOP/s", fmt.flop_rate(row.flop_per_s, flop or timing))),
        *(("flop", number) for number in _utilization_numbers(row)),
        ("memory", Number("peak memory", fmt.num_bytes(row.peak_bytes, memory))),
    ]
    interval = fmt.interval(row.low_s, row.high_s, timing or "fewer than 6 iterations")
    iterations = f"{fmt.number(row.num_iterations, timing)} iteration{'' if row.num_iterations == 1 else 's'}"
    disturbed = disturbance(run, row.case)
    unreliable = bool(disturbed and disturbed.is_unreliable)
    wide = fmt.missed_precision(missed_precision(run, row.case), has_advice=disturbed is None)
    if of_ranks is not None:
        decided = rank_text.verdict(of_ranks)
    else:  # the card's warning says which programs made it unreliable
        decided = fmt.missing("unreliable") if unreliable and pd.isna(verdict.verdict) else fmt.verdict(verdict)
    return Card(
        row.case, headline=Number("per iteration", fmt.seconds(row.median_s, timing)),
        details=[f"95 % interval {interval}, {iterations}",
                 *([] if pd.isna(row.compile_s) else [f"compiled in {fmt.duration(row.compile_s)}"
                                                      f"{_compiled(run, row.case)}"])],
        warnings=[*([_disturbed(disturbed)] if disturbed else []), *([wide] if wide else []),
                  *_unknown_memory(run, row.case)], doubtful=unreliable,
        numbers=[number for name, number in numbers if was_asked_for(run, name)],
        bars=_bars(run, row.case), meters=_meters(run, row.case), verdict=decided,
    )  # fmt: skip


def _compiled(run: Run, case: str) -> str:
    """Return what a case compiled, as text that follows its compile time; empty if that was not recorded."""
    row = next(fmt.rows(compile_counts(run).query("case == @case")), None)
    return "" if row is None else f": {counts_text(row)}"


def _utilization_numbers(row: Any) -> list[Number]:
    """Return the MFU, and the HFU if activations are recomputed. A CPU without a peak has the reason in the table."""
    if pd.isna(row.mfu_frac) and row.device == "cpu":
        return []
    hfu = [] if pd.isna(row.hfu_frac) else [Number("HFU", fmt.share(row.hfu_frac))]
    return [Number("MFU", fmt.share(row.mfu_frac, row.mfu_reason)), *hfu]


def _bars(run: Run, case: str) -> list[ShareBar]:
    """Return the bars of a case's phases, and of its memory if that was measured."""
    phases, held = (frame[frame["case"] == case] for frame in (phase_breakdown(run), memory_composition(run)))
    held = held[held["bytes"] > 0]
    title = ", in ".join(["Memory at the peak", *held["phase"].dropna().head(1)])
    return [*([bar("Time by phase", phases, "phase", palette.PHASES.__getitem__)] if len(phases) else []),
            *([memory_bar(held, title)] if len(held) else [])]


_MUCH_UNKNOWN = 0.1
"""Share of unknown memory at the peak from which the card says what that is."""


def _unknown_memory(run: Run, case: str) -> list[str]:
    """Return what unknown memory is, if a case that was measured here has much of it; a trace has nothing else."""
    held = memory_composition(run)
    share = held.loc[(held["case"] == case) & (held["category"] == "unknown"), "share_frac"].sum()
    if share < _MUCH_UNKNOWN or is_imported(run):
        return []
    return [f"{fmt.share(share)} of the memory at the peak is unknown: tensors that outlive the iteration and are no "
            "parameter, gradient, optimizer state or input, such as a data set, a cache or a copy of weights."]


def _meters(run: Run, case: str) -> list[Meter]:
    """Return the measures of how well a case uses its device that are known, each against its ideal."""
    used, active = utilization(run), busy(run)
    used, active = used[(used["case"] == case) & used["value_frac"].notna()], active[active["case"] == case]
    return [Meter(float(row.value_frac), _USED[row.metric].format(fmt.share(row.value_frac)))
            for row in fmt.rows(used)] + [Meter(row.busy_frac, counter_text.busy(row)) for row in fmt.rows(active)]


def _disturbed(disturbed: Disturbance) -> str:
    result = "the shares of the phases may be wrong" if disturbed.is_unreliable else "times are too long"
    return (f"{str(disturbed).capitalize()}, and took {fmt.share(disturbed.lost_frac)} of the processor time that this "
            f"one wanted: {result}.")


def _few(row: object) -> str | None:
    return status_reason(row) or "fewer than 6 iterations"


def _few_for_spread(row: object) -> str | None:
    return status_reason(row) or f"fewer than {MIN_SPREAD_ITERATIONS} iterations"


def _reason_of(run: Run, name: str) -> Callable[[Any], str | None]:
    return lambda row: status_reason(row) or pass_reason(run, row.case, name)


_FLOP = Column("flop", "FLOP", fmt.num_flop, "counted per iteration, 1 MAC = 2 FLOP", status_reason)


def _table(run: Run, cases: pd.DataFrame) -> Table:
    flop = was_asked_for(run, "flop")
    of_passes = [replace(column, reason=_reason_of(run, name)) for column, name in ((RATE, "flop"), (PEAK, "memory"))
                 if was_asked_for(run, name)]
    columns = [
        CASE, STATUS, ITERATION, SAMPLES, *_optional_columns(cases, TOKENS, PADDING), *of_passes,
        *([MFU, *_optional_columns(cases, HFU)] if flop else []),
        Column("low_s", "95 % from", fmt.seconds, "lower end of the 95 % interval of the median", _few),
        Column("high_s", "95 % to", fmt.seconds, "upper end of the 95 % interval of the median", _few),
        Column("p5_s", "p5", fmt.seconds, "5 % of iterations were faster", _few_for_spread),
        Column("p95_s", "p95", fmt.seconds, "5 % of iterations were slower", _few_for_spread),
        Column("num_iterations", "Iterations", fmt.number, "timed iterations", status_reason),
        *([_FLOP] if flop else []),
        Column("num_parameters", "Parameters", fmt.number, "of the model",
               lambda row: status_reason(row) or "not known for a script"),
        *_optional_columns(cases, Column("num_trainable_parameters", "Trained", fmt.number, "of the parameters",
                                         lambda row: status_reason(row) or "all")),
    ]  # fmt: skip
    return table(cases, "Headline numbers of each case", columns)


_MIN_REPEATS = 3
"""Number of runs of a case from which a table summarizes each case over its runs."""


def _rows(run: Run) -> pd.DataFrame:
    cases = case_summary(run)
    cases = cases[[kind == "profile" for kind in shown_as(cases["kind"])]]
    if cases.empty:
        return cases
    found = bottlenecks(run)[["case", "verdict", "share_frac", "reason"]]
    reasons = {entry.case: why_unreliable(entry.passes.timing.core_use) for entry in run.entries}
    cases["unreliable"] = cases["case"].map(reasons).astype("object")
    found = found.rename(columns={"reason": "verdict_reason"})
    return _with_utilization(run, cases).merge(found, on="case", how="left")


def _tables_across(cases: pd.DataFrame) -> list[Table]:
    shown = cases.assign(
        interval=[fmt.interval(row.low_s, row.high_s, status_reason(row) or "fewer than 6 iterations")
                  for row in fmt.rows(cases)],
        bottleneck=[_bottleneck(row) for row in fmt.rows(cases)],
    )  # fmt: skip
    columns = [
        CASE, RUN, STATUS, ITERATION, _INTERVAL, SAMPLES, *_optional_columns(cases, TOKENS), PEAK, _FLOP_ACROSS, RATE,
        *_optional_columns(cases, MFU, HFU),
        *([_RELIABILITY] if cases["unreliable"].notna().any() else []),
        Column("bottleneck", "Bottleneck", unbroken=True),  # last: a reason may be long
    ]  # fmt: skip
    every = table(shown, "Every profiled case of every run", columns)
    if cases["case"].value_counts().max() < _MIN_REPEATS:
        return [every]
    return [_repeats_table(repeated_cases(cases)), every]


def _bottleneck(row: Any) -> str:
    if not isinstance(row.verdict, str):
        return fmt.missing(status_reason(row) or row.verdict_reason)
    return row.verdict if fmt.absent(row.share_frac) else f"{row.verdict}, {fmt.share(row.share_frac)}"


def _few_runs(row: Any) -> str:
    return "fewer than 6 runs" if row.num_ok else "no run succeeded"


_INTERVAL = Column("interval", "95 % interval", meaning="of the median", unbroken=True)
_RELIABILITY = Column("unreliable", "Reliability", None, "why the times may be wrong",
                      lambda row: status_reason(row) or "no disturbance recorded")
_FLOP_ACROSS = Column("flop", "FLOP", fmt.num_flop, "counted per iteration, 1 MAC = 2 FLOP",
               reason=lambda row: status_reason(row) or "not measured")  # fmt: skip


def _repeats(row: Any) -> str:
    """Return the number of runs, and how many of them failed or were disturbed."""
    succeeded = f"{row.num_runs:,}" if row.num_ok == row.num_runs else f"{row.num_ok:,} of {row.num_runs:,} succeeded"
    return f"{succeeded}, {row.num_unreliable:,} disturbed by other programs" if row.num_unreliable else succeeded


def _repeats_table(repeats: pd.DataFrame) -> Table:
    words = repeats.assign(
        interval=[fmt.interval(row.low_s, row.high_s, _few_runs(row)) for row in fmt.rows(repeats)],
        runs=[_repeats(row) for row in fmt.rows(repeats)],
        bottleneck=[fmt.missing("no verdict") if not row.num_verdict else
                    row.verdict if row.num_verdict == row.num_ok else f"{row.verdict} in {row.num_verdict} runs"
                    for row in fmt.rows(repeats)],
    )  # fmt: skip
    columns = [
        CASE, *([Column("group", "Group", meaning="directory of the runs")] if repeats["group"].any() else []),
        Column("runs", "Runs", meaning="that have the case", unbroken=True),
        Column("median_s", "Iteration", fmt.seconds, "median over the runs of the median iterations", _few_runs),
        _INTERVAL,
        Column("fastest_s", "Fastest", fmt.seconds, "median iteration of the fastest run", _few_runs),
        Column("slowest_s", "Slowest", fmt.seconds, "median iteration of the slowest run", _few_runs),
        Column("bottleneck", "Bottleneck", meaning="the most frequent verdict", unbroken=True),
        PEAK, _FLOP_ACROSS, RATE,
    ]  # fmt: skip
    return table(words, "Cases over their runs", columns)


def _of_case(rows: pd.DataFrame, case: str) -> Iterator[Any]:
    return fmt.rows(rows[rows["case"] == case])


def _cautions(run: Run, case: str) -> list[str]:
    """Return what charact does not see of a case, what it lost, and, for a program's first rank, missing ranks."""
    losses = [f"{fmt.number(row.num_dropped)} {row.what} ({row.reason})" for row in _of_case(dropped(run), case)]
    return [*(row.blind_spot for row in _of_case(blind_spots(run), case)),
            *([f"Dropped: {', '.join(losses)}"] if losses else []),
            *(row.text for row in _of_case(_missing_ranks(run), case))]


def _missing_ranks(run: Run) -> pd.DataFrame:
    """Return programs with missing ranks: the case of their first rank, and a text."""
    first = rank_cases(run).drop_duplicates("program")
    if first.empty:  # most runs have no ranks: merging tables without rows takes time, too
        return first
    return first[["program", "case"]].merge(rank_presence(run).query("num_missing > 0"), on="program")


def _details(run: Run, case: str) -> list[Item]:
    """Return what of the program's time and events is attributed, then what the sections have of the case."""
    lines: list[Item] = [Line((text, "dim")) for row in _of_case(attribution(run), case) for text in _attributed(row)]
    lines += [Line((str(memory), "")) for memory in memory_ran_out(run, case)]
    lines += [Line((f"outside iterations {fmt.outside(row)}", "dim")) for row in _of_case(time_outside(run), case)]
    sections = sorted(all_sections(), key=lambda section: section.summary_order or section.order)
    return [*([Lines(lines)] if lines else []), *(item for section in sections for item in section.summary(run, case))]


def _attributed(row: Any) -> list[str]:
    """Return how much of a program's time has a phase, and which iterations were not timed, from `attribution`."""
    inferred = f" ({fmt.share(row.inferred_frac)} inferred from the calls around it)" if row.inferred_frac else ""
    left_out = [f"the first {fmt.number(row.num_warmup_iterations)} as warm-up"] if row.num_warmup_iterations else []
    if not fmt.absent(row.num_pass_iterations) and row.num_pass_iterations:
        left_out.append(f"{fmt.number(row.num_pass_iterations)} that other passes measured")
    return [f"{fmt.share(row.attributed_frac)} of the time is in a phase{inferred}; the rest is other",
            *([f"not timed: {' and '.join(left_out)}"] if left_out else []), *_in_all(row)]


def _in_all(row: Any) -> list[str]:
    """Return over how many iterations a program was recorded, if it went on after its event log was full."""
    if fmt.absent(row.num_window_iterations) or not row.num_window_iterations:
        return []
    others = sum(number for number in (row.num_warmup_iterations, row.num_pass_iterations) if not fmt.absent(number))
    return [f"{fmt.number(row.num_iterations + others + row.num_window_iterations)} iterations in all; these times are "
            f"of the first {fmt.number(row.num_iterations)} that were timed, the section Over time has all"]


def _by_size(run: Run) -> Mapping[str, "pd.Series[float]"]:
    cases = case_summary(run).set_index("case")
    return {"samples_per_s": cases["samples_per_s"], "peak_memory_bytes": cases["peak_bytes"]}


def _verdicts(run: Run) -> pd.DataFrame:
    found = bottlenecks(run)
    return found.rename(columns={name: str(name).replace("prize", "potential_saving") for name in found})


_PARTS = {
    "headline": CasePart(lambda run: _with_utilization(run, case_summary(run)).merge(
        compile_counts(run), on="case", how="left"), (
        "median_s", "low_s", "high_s", "p5_s", "p95_s", "num_iterations", "samples_per_s", "tokens_per_s",
        "padding_frac", "flop", "flop_per_s", "mfu_frac", "hfu_frac", "mfu_reason", "peak_bytes", "compile_s", *COUNTS),
        is_list=False),
    "verdict": CasePart(_verdicts, (
        "verdict", "share_frac", "threshold_frac", "potential_saving_s", "potential_saving_frac", "potential_saving",
        "evidence", "advice", "reason"), is_list=False),
    "generation": CasePart(lambda run: generations(run).assign(case=lambda rows: rows["decode_case"]), (
        "prefill_case", "input_low", "input_high", "output_size", "batch_size", "cache", "num_prompts", "first_s",
        "first_low_s", "first_high_s", "num_tokens", "token_s", "token_low_s", "token_high_s", "p90_s", "p99_s",
        "request_s", "tokens_per_s", "all_tokens_per_s"), is_list=False),
    "limits": CasePart(time_limits, ("limit", "time_s", "share_frac"), whole=True),
    "phases": CasePart(phase_breakdown, ("phase", "time_s", "share_frac", "host_s", "device_s"),
                       whole=True),
    "memory": CasePart(memory_composition, ("category", "bytes", "share_frac", "phase", "method"),
                       whole=True),
    "compilations": CasePart(compile_events, ("kind", "reason", "file", "line", "text", "num_times"), whole=True),
    "operator_types": CasePart(lambda run: operator_types(run).sort_values("time_s", ascending=False, kind="stable"),
                               ("phase", "operator_type", "num_calls", "time_s", "share_frac"),
                               whole=True),
    "operators": CasePart(top_operators, (
        "operator", "phase", "operator_type", "num_calls", "time_s", "share_frac", "flop", "bytes", "flop_per_s")),
    "layers": CasePart(top_layers, (
        "layer", "layer_type", "num_parameters", "forward_s", "backward_s", "time_s", "share_frac", "flop",
        "flop_per_s")),
    "kernels": CasePart(top_kernels, ("kernel", "num_calls", "device_s", "share_frac", "occupancy_frac")),
    "device_use": CasePart(utilization, ("metric", "value", "value_frac", "ideal", "source", "method", "reason"),
                           whole=True),
    "energy": CasePart(energy, (
        "device", "source", "energy_per_iteration_j", "energy_per_sample_j", "power_w", "reason"),
        whole=True),
    "counters": CasePart(counter_values, ("source", "device", "counter", "value"), whole=True),
    **{f"{phase}_frames": CasePart(partial(sampled_frames, phase=phase),
                                   ("place", "function", "library", "share_frac", "time_s"),
                                   whole=True)
       for phase in SAMPLED_PHASES},
    "straggler": CasePart(rank_verdicts, (
        "rank", "world_size", "verdict", "straggler", "phase", "extra_s", "wait_s", "share_frac", "threshold_frac",
        "num_iterations", "evidence", "advice", "reason"), is_list=False),
    "all_ranks": CasePart(job_rates, (
        "num_ranks", "samples_per_s", "tokens_per_s", "mfu_frac", "hfu_frac", "reason"), is_list=False),
    "scaling": CasePart(case_scaling, (
        "kind", "num_ranks", "batch_size", "global_batch_size", "base_s", "time_s", "samples_per_s", "efficiency",
        "low", "high", "lost_s", *CAUSES, "cause_reason", "phase", "phase_lost_s", "reason"),
        whole=True),
    "waiting": CasePart(rank_waits, ("for_rank", "wait_s", "share_frac"), whole=True),
    "collectives": CasePart(collective_summary, (
        "phase", "operation", "group", "group_size", "num_calls", "bytes", "exposed_s", "late_s", "bus_bytes_per_s",
        "of_best_frac", "of_best_reason", "device_s", "overlapped_s")),
    "serving_steps": CasePart(serving_kinds, (
        "kind", "kind_reason", "num_steps", "median_s", "p90_s", "whole_s", "share_frac", "busy_frac", "num_requests",
        "num_tokens", "num_kernels", "graph_frac"), whole=True),
    "serving_gaps": CasePart(serving_gaps, ("cause", "time_s", "mean_s", "share_frac"), whole=True),
    "serving_kernels": CasePart(serving_kernels, (
        "kernel_kind", "num_kernels", "device_s", "share_frac", "operator_frac", "graph_frac", "step_frac", "largest",
        "largest_frac"), whole=True),
    "blind_spots": CasePart(blind_spots, ("blind_spot",), whole=True),
}  # fmt: skip


def _answer(run: Run, cases: pd.DataFrame) -> str:
    """Return how long iterations take, in which phase and why; of a watched program, what the first remedy saves.

    Of an inference server's trace, the sentence is on its steps; of a generation, on its tokens. A training comes
    before its generations.
    """
    if is_generation(run):
        rest = cases[~cases["mode"].isin(GENERATING_MODES)]
        sentences = [_of_generations(run, any_others=not rest.empty),
                     *([_answer_of_iterations(run, rest)] if len(rest) else [])]
        return "; ".join(reversed(sentences) if (rest["mode"] == "train").any() else sentences)
    served = serving_limits(run)
    if len(served):
        sentences = [f"{row.case}: {serving_text.limit(row)}" for row in fmt.rows(served)]
        rest = cases[~cases["case"].isin(served["case"])]
        return "; ".join([*sentences, *([_answer_of_iterations(run, rest)] if len(rest) else [])])
    return _answer_of_iterations(run, cases)


def _of_generations(run: Run, *, any_others: bool) -> str:
    """Return how long first and further tokens take, over all generations, and what most of the cases are bound by."""
    rows = generations(run)
    whole = [f"The first token takes {_from_to(rows['first_s'])}", f"each further one {_from_to(rows['token_s'])}"]
    verdicts = bottlenecks(run).merge(run.cases[["case", "mode"]], on="case")
    decoding = verdicts.loc[verdicts["mode"] == "decode", "verdict"]
    counts = decoding.value_counts().head(1)
    bound = "".join(f"; decoding is {verdict}{'' if num == len(decoding) else f' in {num} of {len(decoding)} cases'}"
                    for verdict, num in counts.items())
    is_free = not any_others and has_findings(run) and findings(run).empty
    nothing = f". {finding_text.nothing(None)}" if is_free else ""
    return f"{', '.join(whole)}: {_from_to(rows['all_tokens_per_s'], fmt.number)} tokens/s in all{bound}{nothing}"


def _from_to(values: "pd.Series[float]", text: Callable[[float], object] = fmt.seconds) -> str:
    measured = values.dropna()
    if measured.empty:
        return str(fmt.missing("not measured"))
    ends = dict.fromkeys(str(text(float(end))) for end in (measured.min(), measured.max()))
    return " to ".join(ends)


def _answer_of_iterations(run: Run, cases: pd.DataFrame) -> str:
    rows = cases.merge(bottlenecks(run)[["case", "verdict"]], on="case", how="left")
    largest = largest_part(run) if has_findings(run) else None
    if len(rows) == 1:
        phases = phase_breakdown(run).merge(rows[["case"]]).sort_values(
            "share_frac", ascending=False, kind="stable").head(1)
        what = "".join(f", {fmt.share(row.share_frac)} of it in {row.phase}" for row in fmt.rows(phases))
        verdicts = [f"it is {verdict}" for verdict in rows["verdict"].dropna()]
    else:
        what = "" if largest is None else (f"; in {largest.case}, which takes most of the time, "
                                           f"{fmt.share(largest.share_frac)} of it is {largest.phase}")
        counts = rows["verdict"].dropna().value_counts()
        verdicts = [", ".join(f"{'all' if number == len(rows) else number} {'is' if number == 1 else 'are'} {verdict}"
                              for verdict, number in counts.items())] if len(counts) else []
    verdicts = [rank_text.verdict(row) for row in fmt.rows(_uneven_ranks(run).head(1))] or verdicts
    nothing = f". {finding_text.nothing(None)}" if largest is not None and findings(run).empty else ""
    return "; ".join([takes(cases, "median_s", fmt.seconds, f"an iteration{what}"), *verdicts]) + nothing


_NUM_CELLS = 12
"""Number of letters of a bar of phases in a table."""


def _brief(run: Run, cases: pd.DataFrame) -> Table:
    """Build the table of a summary: time, its precision, rate, memory, phases and verdict of each case."""
    phases = dict(iter(phase_breakdown(run).groupby("case", sort=False)))
    verdicts = bottlenecks(run)[["case", "verdict", "reason"]].rename(columns={"reason": "no_verdict"})
    rows = _with_utilization(run, cases).merge(verdicts, on="case", how="left")
    rows["half_frac"] = (rows["high_s"] - rows["low_s"]) / 2 / rows["median_s"]
    peak = [replace(PEAK, reason=_reason_of(run, "memory"))] if was_asked_for(run, "memory") else []
    columns = [
        CASE, ITERATION, Column("half_frac", "±", fmt.share, "half the 95 % interval of the median", _few), SAMPLES,
        *_optional_columns(rows, TOKENS, MFU, HFU), *peak,
        Column("verdict", "Verdict", reason=lambda row: status_reason(row) or _without_share(row.no_verdict)),
    ]  # fmt: skip
    brief = table(rows, "", columns)
    if not phases:
        return brief
    cells = [_phase_cell(phases.get(str(row.case))) for row in brief.rows]
    names = dict.fromkeys(name for of_case in phases.values() for name in of_case["phase"])
    return replace(
        brief, columns=[*columns[:-1], Column("phases", "Phases"), columns[-1]],
        rows=[replace(row, cells=[*row.cells[:-1], cell, row.cells[-1]])
              for row, cell in zip(brief.rows, cells, strict=True)],
        note=f"{', '.join(f'{name[0].upper()} {name}' for name in palette.PHASES if name in names)}.")


def _without_share(reason: str) -> str:
    """Return why there is no verdict, the same text for cases that differ in the share of the unknown limit only."""
    return reason.partition(": ")[2] if reason.startswith("the limit of") else reason


def _phase_cell(phases: pd.DataFrame | None) -> Cell:
    """Return a bar of letters, each for a twelfth of the iteration, with the colors of the phases."""
    if phases is None:
        return Cell(fmt.missing("not timed"))
    ends = [round(_NUM_CELLS * end) for end in phases["share_frac"].cumsum()]
    spans = [(name[0].upper() * (end - start), palette.PHASES[name])
             for name, start, end in zip(phases["phase"], [0, *ends], ends, strict=False)]
    return Cell("".join(text for text, _ in spans), spans=spans)


KIND = CaseKind("profile", 10, _overview, _rows, _tables_across,
                ("median_s", "samples_per_s", "flop_per_s", "peak_bytes"), _answer, _brief, _cautions, _details,
                parts=_PARTS, by_size=_by_size)
