"""Terminal summary of a memory run: a table of peaks per series, growth, largest peak, and sizes that fit."""

from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from charact.analysis.memory.composition import is_memory_run, memory_composition, memory_peaks, peak_moments
from charact.analysis.memory.growth import (
    SERIES,
    case_series,
    memory_growth,
    memory_steps,
    of_series,
    training_to_inference,
)
from charact.analysis.memory.limits import (
    limited_cpu,
    memory_fits,
    memory_room,
    out_of_memory,
    out_of_memory_composition,
)
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables import palette
from charact.views.terminal.bars import Bar, Part
from charact.views.terminal.case_lines import Hanging

_MOST_ROWS, _MOST_OUTSIDE = 12, 3
_SHOWN_TOGETHER = [name for name in SERIES if name != "batch_size"]


def blocks(run: Run) -> list[RenderableType]:
    """Return the blocks of each series: peaks, growth, largest peak; then sizes that fit, and failed cases.

    Return no blocks if the run is not a memory run.
    """
    if not is_memory_run(run):
        return []
    rows = case_series(run).merge(memory_peaks(run), on="case")
    known = rows[["measured_bytes", "predicted_bytes"]].notna().any(axis="columns")
    rows = rows[known.groupby([rows[name] for name in _SHOWN_TOGETHER]).transform("any")]
    growth = memory_growth(run)
    limited = limited_cpu(run)
    note: list[RenderableType] = [Text(), Hanging(Text(words.limited_cpu(*limited), style="yellow"))] if limited else []
    shown: list[RenderableType] = []
    for _, group in rows.groupby(_SHOWN_TOGETHER, sort=False):
        first = next(fmt.rows(group))
        title = f"{words.model(first.workload, first.variant)}, {first.mode}, {first.precision}, {first.device}"
        title += f", {first.ranks}" if first.ranks else ""
        below = [_peaks(run, group), *_growth(run, of_series(growth, first, _SHOWN_TOGETHER)), *_peak(run, group)]
        shown += [Text(), Rule(Text(title, style="bold"), align="left", style="dim"),
                  *(Padding(each, (0, 0, 1, 2)) for each in below)]  # fmt: skip
    return [*shown, *note, *_fits(run), *_failures(run)]


def _peaks(run: Run, rows: pd.DataFrame) -> Group:
    """Return the table of measured and estimated peaks by size and batch, with at most 12 evenly spaced rows."""
    titles = ["measured"] if rows["measured_bytes"].notna().any() else []
    titles += ["predicted", "±"] if rows["predicted_bytes"].notna().any() else []
    titles += ["error"] if len(titles) == 3 else []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    ratios = {case: fmt.ratio(ratio) for case, ratio in _ratios(run).items()}
    titles += ["train ÷ infer"] if any(case in ratios for case in rows["case"]) else []
    for title in ("size", "batch", *titles):
        table.add_column(title, justify="right", overflow="fold")
    step = -(-len(rows) // _MOST_ROWS)
    thinned = rows.sort_values(["batch_size", "num_positions"], kind="stable").iloc[::-step].iloc[::-1]
    for row in fmt.rows(thinned):
        cells = _cells(row) | {"train ÷ infer": ratios.get(row.case, fmt.missing("one mode"))}
        table.add_row(str(row.input_size), str(row.batch_size), *(Text(cells[title]) for title in titles))
    notes = [f"{len(thinned)} of {len(rows)} cases; the report has all"] if step > 1 else []
    only_predicted = (thinned["status"] == "ok") & (thinned["measured_reason"] == words.PREDICTED_ONLY)
    if "measured" in titles and only_predicted.any():
        notes.append("– was not measured, only predicted")
    return Group(table, *_accuracy(rows), *(Text(note, style="dim") for note in notes))


def _accuracy(rows: pd.DataFrame) -> list[RenderableType]:
    """Return a line for each measured peak outside of its estimate, a failure of charact; else that all are inside."""
    known, far = rows["outside_bytes"].notna().sum(), rows[rows["outside_bytes"] > 0]
    if far.empty:
        every = "the measured peak is" if known == 1 else f"all {known} measured peaks are"
        return [Text(f"{every} within the estimated interval", style="dim")] if known else []
    far = far.sort_values("outside_bytes", ascending=False, kind="stable")
    lines = [Hanging(Text.assemble((row.case, "bold"), "  ", (words.outside(row), "bold red")))
             for row in fmt.rows(far.head(_MOST_OUTSIDE))]
    left = len(far) - len(lines)
    return [*lines, *([Text(f"and {left} more of {known} measured peaks; the report has all", style="red")]
                      if left > 0 else [])]


def _ratios(run: Run) -> dict[str, float]:
    """Return the training-to-inference ratio by case: measured if available, else estimated."""
    ratios = training_to_inference(run).sort_values("method", ascending=False, kind="stable")
    return {case: ratio for mode in ("train", "infer")
            for case, ratio in zip(ratios[f"{mode}_case"], ratios["ratio"], strict=True)}  # fmt: skip


def _cells(row: Any) -> dict[str, str]:
    """Return a case's cells by column title: the status if it failed, a dash if it was only estimated."""
    why = row.measured_reason if row.status == "ok" else row.status
    is_absent = pd.isna(row.measured_bytes) and why == words.PREDICTED_ONLY
    not_compared = pd.isna(row.measured_bytes) or pd.isna(row.predicted_bytes)
    half = words.plus_minus(row.low_bytes, row.high_bytes, row.predicted_reason or "not recorded")
    return {
        "measured": "–" if is_absent else fmt.num_bytes(row.measured_bytes, why),
        "predicted": fmt.num_bytes(row.predicted_bytes, row.predicted_reason if row.status == "ok" else row.status),
        "±": half.removeprefix("± ") if row.status == "ok" or pd.notna(row.low_bytes) else "–",
        "error": "–" if not_compared else words.share_of(row.error_frac),
    }


def _growth(run: Run, rows: pd.DataFrame) -> list[RenderableType]:
    """Return a line for each batch size and method: how the peak grows with the input size."""
    steps = memory_steps(run)
    lines = [f"batch {row.batch_size}, {row.method}: {words.growth(row, of_series(steps, row, [*SERIES, 'method']))}"
             for row in fmt.rows(rows)]
    return [Group(Text("growth with the input size"), *(Hanging(Text(line)) for line in lines))] if lines else []


def _peak(run: Run, rows: pd.DataFrame) -> list[RenderableType]:
    """Return a bar with the largest case's peak by category, and its position in the iteration."""
    largest = rows.sort_values(["measured_bytes", "predicted_bytes"], na_position="first")["case"].iloc[-1]
    moments = peak_moments(run)
    moment = next(fmt.rows(moments[moments["case"] == largest]), None)
    if moment is None:
        return []
    held = memory_composition(run)
    held = held[(held["case"] == largest) & (held["method"] == moment.method) & (held["bytes"] > 0)]
    label = f"{largest} peaks ({fmt.num_bytes(moment.bytes)}, {moment.method}) in {words.place(moment)}"
    batch = words.batches(next(fmt.rows(rows[rows["case"] == largest])))
    return [*map(Text, batch), Bar(label, [
        Part(words.category(row.category), row.share_frac, fmt.num_bytes(row.bytes), palette.CATEGORIES[row.category])
        for row in fmt.rows(held)
    ])]  # fmt: skip


def _fits(run: Run) -> list[RenderableType]:
    room = memory_room(run)
    lines = [_room(rows) for _, rows in room.groupby(["target", "limit_bytes"], sort=False)]
    lines += [
        Text.assemble((f"{words.model(row.workload, row.variant)}, {row.mode}", "bold"), f"  {words.fit(row)}")
        for row in fmt.rows(memory_fits(run))
    ]
    return [Text(), *map(Hanging, lines)] if lines else []


def _room(rows: pd.DataFrame) -> Text:
    """Return the largest of the cases that fit a device, from their rows of `memory_room`."""
    largest = next(fmt.rows(rows.sort_values("needed_bytes").tail(1)))
    others = f"; so do {len(rows) - 1} smaller cases" if len(rows) > 1 else ""
    return Text.assemble((largest.case, "bold"), f"  {words.room(largest)}{others}")


def _failures(run: Run) -> list[RenderableType]:
    """Return a line for each failed case; if it ran out of memory, with requested and allocated memory."""
    ran_out_rows = out_of_memory(run)
    out_of_memory_rows: dict[str, Any] = {row.case: row for row in fmt.rows(ran_out_rows)}
    held = out_of_memory_composition(run)
    lines = []
    for row in fmt.rows(run.cases[run.cases["status"] != "ok"]):
        reason, ran_out = fmt.failure(row.status, row.reason), out_of_memory_rows.get(row.case)
        if ran_out is not None:
            reason = words.ran_out(ran_out, held[held["case"] == row.case])
        status = words.failed(run, str(row.case), str(row.status))
        lines.append(Hanging(Text.assemble((row.case, "bold"), "  ", (f"{status}: ", "bold red"), reason)))
    searches = [Hanging(Text(line)) for line in words.searches(ran_out_rows)]
    return [Text(), *lines, *searches] if lines else []
