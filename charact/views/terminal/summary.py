"""A run's summary in the terminal: headline numbers, and bars that say where time and memory go."""

from collections.abc import Callable

import pandas as pd
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from charact.analysis.common.pass_status import missed_precision, pass_reason, was_asked_for
from charact.analysis.common.script_attribution import (
    attribution,
    blind_spots,
    dropped,
    has_unexplained_other,
    sampled_frames,
)
from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.memory.composition import memory_composition
from charact.analysis.profile.breakdown import operator_types, phase_breakdown
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.profile.model_parts import part_breakdown
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.terminal import bottleneck, bricks, counters, operations, training
from charact.views.terminal import memory as terminal_memory
from charact.views.terminal.bars import Bar, Part

_NUM_TYPES = 5
_NUM_PLACES = 3


def summary(run: Run) -> RenderableType:
    """All cases of a run: a table of headline numbers, then each case's bars; failed cases with status and reason.

    Colour is left to the console: where it has none (a pipe, NO_COLOR) bars are drawn in letters.
    """
    run = presentable(run)
    cases = case_summary(run)
    if cases.empty:
        return Text(f"{run.run_id}: {fmt.no_cases(run.partial)}")
    profiles = cases[cases["kind"] == "profile"]
    done = profiles[profiles["status"] == "ok"]
    blocks: list[RenderableType] = [_headlines(run, done)] if len(done) else []
    blocks += training.headlines(run)
    failed = cases[(cases["status"] != "ok") & ~cases["kind"].isin(["memory", "operation", "bricks", "construction"])]
    blocks += [_failure(case) for _, case in failed.iterrows()]
    verdicts = {row.case: row for row in fmt.rows(bottlenecks(run))} if len(done) else {}
    for _, case in done.iterrows():
        bars = [_phase_bar(run, case), *_part_bars(run, case), *_places(run, case)]
        bars += [bar(run, case) for name, bar in _PASS_BARS.items() if was_asked_for(run, name)]
        bars += counters.counter_line(run, str(case["case"]))
        bars.append(bottleneck.verdict(verdicts[case["case"]]))
        blocks += training.case_block(str(case["case"]), _iteration_line(run, case), bars)
    return Group(*blocks, *training.blocks(run), *terminal_memory.blocks(run), *operations.blocks(run),
                 *bricks.blocks(run))


def _headlines(run: Run, cases: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("case", overflow="fold")
    passes = {"iteration": "timing", "samples/s": "timing", "FLOP/s": "flop", "peak memory": "memory"}
    titles = [title for title, name in passes.items() if was_asked_for(run, name)]
    for title in titles:
        table.add_column(title, justify="right", overflow="fold")
    for _, case in cases.iterrows():
        name = str(case["case"])
        timing, flop, memory = (pass_reason(run, name, each) for each in ("timing", "flop", "memory"))
        cells = {
            "iteration": Text(fmt.seconds(case["median_s"], timing), style="bold"),
            "samples/s": Text(fmt.number(case["samples_per_s"], timing or fmt.no_samples(case["batch_size"]))),
            "FLOP/s": Text(fmt.flop_rate(case["flop_per_s"], flop or timing)),
            "peak memory": Text(fmt.num_bytes(case["peak_bytes"], memory)),
        }
        table.add_row(Text(name), *(cells[title] for title in titles))
    return table


def _failure(case: pd.Series) -> Text:
    status = str(case["status"])
    return Text.assemble((str(case["case"]), "bold"), "  ", (f"{status}: ", "bold red"),
                         fmt.failure(status, case["reason"]))  # fmt: skip


def _iteration_line(run: Run, case: pd.Series) -> RenderableType:
    timing = pass_reason(run, str(case["case"]), "timing")
    few = timing or "fewer than 6 iterations"
    line = Text.assemble(
        (fmt.seconds(case["median_s"], timing), "bold"), " per iteration, 95 % interval ",
        fmt.interval(case["low_s"], case["high_s"], few), f", {fmt.number(case['num_iterations'], timing)} iterations",
    )  # fmt: skip
    if pd.notna(case["compile_s"]):
        line.append(f", compiled in {fmt.duration(case['compile_s'])}")
    found = attribution(run)
    for row in fmt.rows(found[found["case"] == case["case"]]):
        line.append(f"\n{fmt.share(row.attributed_frac)} of the time has a phase ({fmt.share(row.inferred_frac)} "
                    f"inferred), iterations left out before: {fmt.number(row.num_warmup_iterations)}", style="dim")
    spots = blind_spots(run)
    for spot in spots.loc[spots["case"] == case["case"], "blind_spot"]:
        line.append(f"\n{spot}", style="yellow")
    left_out = dropped(run)
    if told := [f"{fmt.number(row.num_dropped)} {row.what} ({row.reason})"
                for row in fmt.rows(left_out[left_out["case"] == case["case"]])]:
        line.append(f"\nDropped: {', '.join(told)}", style="yellow")
    if missed := fmt.missed_precision(missed_precision(run, str(case["case"]))):
        line.append(f"\n{missed}", style="yellow")
    return Padding(line, (0, 0, 0, 2))


def _phase_bar(run: Run, case: pd.Series) -> RenderableType:
    phases = phase_breakdown(run)
    rows = phases[phases["case"] == case["case"]]
    if rows.empty:
        return _nothing(run, case, "time by phase", "timing")
    parts = [
        Part(row.phase, row.share_frac, fmt.seconds(row.time_s), palette.PHASES[row.phase]) for row in rows.itertuples()
    ]
    return Bar("time by phase", parts)


def _part_bars(run: Run, case: pd.Series) -> list[RenderableType]:
    """A bar for each model or optimizer of a program that has several."""
    parts = part_breakdown(run)
    rows = parts[(parts["case"] == case["case"]) & parts["part"].notna()]
    return [
        Bar(f"time in {part}", [
            Part(row.phase, row.share_frac, fmt.seconds(row.time_s), palette.PHASES[row.phase])
            for row in of_part.itertuples()
        ])
        for part, of_part in rows.groupby("part", sort=False)
    ]  # fmt: skip


def _places(run: Run, case: pd.Series) -> list[RenderableType]:
    """Where a sampler saw the program most often while its time was `other`."""
    frames = sampled_frames(run)
    rows = frames[frames["case"] == case["case"]].head(_NUM_PLACES)
    called = ("" if pd.isna(library) else f", {library}" for library in rows["library"])
    lines = [
        f"{fmt.share(row.share_frac)}  {row.place} in {row.function}{library}"
        for row, library in zip(fmt.rows(rows), called, strict=True)
    ]
    if has_unexplained_other(run, str(case["case"])):
        return [Text(fmt.UNEXPLAINED, style="dim")]
    return [Text("\n".join(["other was", *lines]))] if lines else []


def _memory_bar(run: Run, case: pd.Series) -> RenderableType:
    held = memory_composition(run)
    rows = held[(held["case"] == case["case"]) & (held["method"] == "measured") & (held["bytes"] > 0)]
    if rows.empty:
        return _nothing(run, case, "memory at the peak", "memory")
    parts = [
        Part(row.category.replace("_", " "), row.share_frac, fmt.num_bytes(row.bytes), palette.CATEGORIES[row.category])
        for row in rows.itertuples()
    ]
    return Bar(f"memory at the peak (in {rows['phase'].iloc[0]})", parts)


def _type_bar(run: Run, case: pd.Series) -> RenderableType:
    types = operator_types(run)
    times = types[types["case"] == case["case"]].groupby("operator_type")["time_s"].sum()
    times = times.sort_values(ascending=False)
    if times.empty or not times.sum():
        return _nothing(run, case, "time by operator type", "operators")
    top, rest = times.iloc[:_NUM_TYPES], times.iloc[_NUM_TYPES:]
    parts = [
        Part(str(name), time_s / times.sum(), fmt.seconds(time_s), palette.operator_type(str(name)))
        for name, time_s in top.items()
    ]
    if len(rest):
        name = f"{len(rest)} more"
        parts.append(Part(name, rest.sum() / times.sum(), fmt.seconds(rest.sum()), palette.REMAINDER))
    return Bar("time by operator type (under the profiler)", parts)


_PASS_BARS: dict[str, Callable[[Run, pd.Series], RenderableType]] = {"memory": _memory_bar, "operators": _type_bar}
"""What is shown of a pass, where it was asked for."""


def _nothing(run: Run, case: pd.Series, label: str, name: str) -> Text:
    reason = pass_reason(run, str(case["case"]), name) or "the record holds no rows"
    return Text.assemble(f"{label}  ", (fmt.missing(reason), "dim"))
