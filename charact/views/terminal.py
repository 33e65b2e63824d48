"""A run's summary in the terminal: headline numbers, and bars that say where time and memory go."""

from dataclasses import dataclass

import pandas as pd
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from charact import analysis
from charact.store import Run
from charact.views import format as fmt
from charact.views import palette

_NUM_TYPES = 5
_WIDEST_BAR = 100


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar: what it is, its share of the whole, its amount in words, its colour."""

    name: str
    share_frac: float
    amount: str
    color: str


@dataclass(frozen=True)
class Bar:
    """A stacked bar over its legend; where there is no colour, letters that the legend explains take its place."""

    label: str
    parts: list[Part]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar as wide as the console allows, up to a limit, then the legend, wrapped between its entries."""
        plain = console.no_color or console.color_system is None
        letters = _letters([part.name for part in self.parts])
        widths = _whole_cells([part.share_frac for part in self.parts], min(options.max_width, _WIDEST_BAR))
        bar, entries = Text(no_wrap=True), []
        for part, letter, width in zip(self.parts, letters, widths, strict=True):
            bar.append((letter if plain else "█") * width, style=part.color)
            mark = f"{letter} " if plain else "■ "
            share = (fmt.share(part.share_frac), "dim")
            entries.append(Text.assemble((mark, part.color), (part.name, "bold"), f" {part.amount} ", share))
        yield Text(self.label)
        yield bar
        yield from _wrapped(entries, options.max_width)


def summary(run: Run) -> RenderableType:
    """All cases of a run: a table of headline numbers, then each case's bars; failed cases with status and reason.

    Colour is left to the console: where it has none (a pipe, NO_COLOR) bars are drawn in letters.
    """
    cases = analysis.case_summary(run)
    if cases.empty:
        return Text(f"{run.run_id} holds no cases: the run ended before its first case did.")
    done = cases["status"] == "ok"
    blocks: list[RenderableType] = [_headlines(run, cases[done])] if done.any() else []
    blocks += [_failure(case) for _, case in cases[~done].iterrows()]
    for _, case in cases[done].iterrows():
        title = Text(str(case["case"]), style="bold")
        blocks += [Text(), Rule(title, align="left", style="dim"), _iteration_line(run, case)]
        bars: list[RenderableType] = [_phase_bar(run, case), _memory_bar(run, case), _type_bar(run, case)]
        blocks += [Padding(bar, (1, 0, 0, 2)) for bar in bars]
    return Group(*blocks)


def _headlines(run: Run, cases: pd.DataFrame) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("case", overflow="fold")
    for title in ("iteration", "samples/s", "FLOP/s", "peak memory"):
        table.add_column(title, justify="right", overflow="fold")
    for _, case in cases.iterrows():
        name = str(case["case"])
        timing, flop, memory = (analysis.pass_reason(run, name, each) for each in ("timing", "flop", "memory"))
        table.add_row(
            Text(name),
            Text(fmt.seconds(case["median_s"], timing), style="bold"),
            Text(fmt.number(case["samples_per_s"], timing)),
            Text(fmt.flop_rate(case["flop_per_s"], flop or timing)),
            Text(fmt.num_bytes(case["peak_bytes"], memory)),
        )
    return table


def _failure(case: pd.Series) -> Text:
    reason = "no reason recorded" if pd.isna(case["reason"]) else str(case["reason"])
    return Text.assemble((str(case["case"]), "bold"), "  ", (f"{case['status']}: ", "bold red"), reason)


def _iteration_line(run: Run, case: pd.Series) -> RenderableType:
    timing = analysis.pass_reason(run, str(case["case"]), "timing")
    few = timing or "fewer than 6 iterations"
    line = Text.assemble(
        (fmt.seconds(case["median_s"], timing), "bold"), " per iteration, 95 % interval ",
        fmt.interval(case["low_s"], case["high_s"], few), f", {fmt.number(case['num_iterations'], timing)} iterations",
    )  # fmt: skip
    if missed := fmt.missed_precision(analysis.missed_precision(run, str(case["case"]))):
        line.append(f"\n{missed}", style="yellow")
    return Padding(line, (0, 0, 0, 2))


def _phase_bar(run: Run, case: pd.Series) -> RenderableType:
    phases = analysis.phase_breakdown(run)
    rows = phases[phases["case"] == case["case"]]
    if rows.empty:
        return _nothing(run, case, "time by phase", "timing")
    parts = [
        Part(row.phase, row.share_frac, fmt.seconds(row.time_s), palette.PHASES[row.phase]) for row in rows.itertuples()
    ]
    return Bar("time by phase", parts)


def _memory_bar(run: Run, case: pd.Series) -> RenderableType:
    held = analysis.memory_composition(run)
    rows = held[(held["case"] == case["case"]) & (held["method"] == "measured") & (held["bytes"] > 0)]
    if rows.empty:
        return _nothing(run, case, "memory at the peak", "memory")
    parts = [
        Part(row.category.replace("_", " "), row.share_frac, fmt.num_bytes(row.bytes), palette.CATEGORIES[row.category])
        for row in rows.itertuples()
    ]
    return Bar(f"memory at the peak (in {rows['phase'].iloc[0]})", parts)


def _type_bar(run: Run, case: pd.Series) -> RenderableType:
    types = analysis.operator_types(run)
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


def _nothing(run: Run, case: pd.Series, label: str, name: str) -> Text:
    reason = analysis.pass_reason(run, str(case["case"]), name) or "the record holds no rows"
    return Text.assemble(f"{label}  ", (fmt.missing(reason), "dim"))


def _letters(names: list[str]) -> list[str]:
    """A letter for each name, of its own where one is left."""
    letters: list[str] = []
    for name in names:
        candidates = [letter for letter in f"{name.upper()}ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.isalpha()]
        letters.append(next((letter for letter in candidates if letter not in letters), "#"))
    return letters


def _whole_cells(shares: list[float], width: int) -> list[int]:
    """Cells of each share of a bar: whole, summing to the width."""
    ends = [round(width * sum(shares[: number + 1])) for number in range(len(shares))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _wrapped(entries: list[Text], width: int) -> list[Text]:
    """Entries in lines, three spaces apart, broken between entries only."""
    lines = [Text()]
    for entry in entries:
        if lines[-1] and len(lines[-1]) + 3 + len(entry) > width:
            lines.append(Text())
        lines[-1].append_text(Text("   " if lines[-1] else "")).append_text(entry)
    return lines
