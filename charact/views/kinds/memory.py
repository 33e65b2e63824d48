"""Cases whose peak memory is measured or estimated."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.memory.by_input_size import (
    SERIES,
    case_series,
    growth_by_case,
    growth_by_input_size,
    memory_steps,
    named_series,
    of_series,
    training_to_inference,
)
from charact.analysis.memory.composition import (
    is_memory_run,
    memory_composition,
    memory_needs,
    memory_peaks,
    peak_moments,
)
from charact.analysis.memory.limits import (
    limited_cpu,
    memory_fits,
    memory_room,
    out_of_memory,
    out_of_memory_composition,
)
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Card, Chapter, Item, Line, Lines, Number, failure_line
from charact.views.html.elements.blocks import CASE, STATUS, memory_bar
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables.model import Column, Table, table

_MOST_ROWS, _MOST_OUTSIDE = 12, 3
"""Largest numbers of rows of a table, and of measured peaks outside of their estimate, in a summary."""
_TOGETHER = [name for name in SERIES if name != "batch_size"]
"""What the rows of a table of a summary have in common."""


def _cards(run: Run) -> list[Card]:
    """Return a card for the largest successful case of each series, and one for each reason of other failures."""
    rows = named_series(run).merge(memory_peaks(run), on="case")
    ran_out = {row.case: row for row in fmt.rows(out_of_memory(run))}
    cards: list[Card] = []
    for _, series in rows.groupby(SERIES, sort=False, dropna=False):
        succeeded, failed = series[series["status"] == "ok"].sort_values("input_size"), series[series["status"] != "ok"]
        if len(succeeded):
            cards += _cards_of_series(run, succeeded)
            failed = failed[failed["status"] != "oom"]
        for _, group in failed.groupby(["status", "reason"], sort=False, dropna=False):
            first = next(fmt.rows(group))
            fits = f"; {words.what_would_fit(ran_out[first.case])}" if first.case in ran_out else ""
            cards.append(Card(first.case, failure=(
                words.status_text(run, first.case, first.status),
                f"{fmt.failure(first.status, first.reason)}{_and_more(len(group))}{fits}")))
    return cards


def _cards_of_series(run: Run, rows: pd.DataFrame) -> list[Card]:
    """Return a card for the largest case, and one for a measured peak outside of its estimate: a failure of charact."""
    card = _card(run, next(fmt.rows(rows.tail(1))))
    far = rows[rows["outside_bytes"] > 0].sort_values("outside_bytes", kind="stable")
    if far.empty:
        return [card]
    is_largest = bool((far["case"] == card.case).any())
    row = next(fmt.rows(far[far["case"] == card.case] if is_largest else far.tail(1)))
    failure = (words.outside(row), f"measured {fmt.num_bytes(row.measured_bytes)}, estimated "
                                   f"{fmt.num_bytes(row.low_bytes)} to {fmt.num_bytes(row.high_bytes)}"
                                   f"{_and_more(len(far))}")
    return [replace(card, failure=failure)] if is_largest else [card, Card(row.case, failure=failure)]


def _and_more(count: int) -> str:
    return f" (and {count - 1} more of this series)" if count > 1 else ""


def _card(run: Run, row: Any) -> Card:
    """Return the card of a case: its peak, or the largest size that fits, growth and training-to-inference ratio."""
    method = "measured" if pd.notna(row.measured_bytes) else "predicted"
    peak_bytes = getattr(row, f"{method}_bytes")
    if pd.isna(peak_bytes):
        return Card(row.case, failure=("no data", row.measured_reason))
    if method == "predicted":
        detail = f"uncertainty {words.plus_minus(row.low_bytes, row.high_bytes, 'not recorded')}"
    else:
        detail = f"predicted {fmt.num_bytes(row.predicted_bytes, row.predicted_reason)}"
        detail += f", {words.share_of(row.error_frac)}" if pd.notna(row.error_frac) else ""
        detail += ", measured within its interval" if row.outside_bytes == 0 else ""
    moment = next(fmt.rows(peak_moments(run).query("case == @row.case and method == @method")))
    headline = Number(f"at the peak, {method}", fmt.num_bytes(peak_bytes))
    details = [f"in {words.place(moment)}", detail, *words.batches(row)]
    for fit in fmt.rows(memory_fits(run).query("case == @row.case").head(1)):
        (value, name), needs = words.fit_in_brief(fit)
        details = [needs, f"{headline.text} {headline.name}, {details[0]}", detail]
        headline = Number(name, value)
    for room in fmt.rows(memory_room(run).query("case == @row.case").head(1)):
        details = [words.room(room), *details]
    growth = next(fmt.rows(of_series(growth_by_input_size(run).query("method == @method"), row)))
    numbers = [] if pd.isna(growth.sample_slope_bytes) else [
        Number(f"a {growth.position} of a sample", fmt.num_bytes(growth.sample_slope_bytes)),
        Number("fixed", fmt.num_bytes(growth.fixed_bytes))]
    ratios = training_to_inference(run).query("method == @method")
    ratios = ratios[(ratios["train_case"] == row.case) | (ratios["infer_case"] == row.case)]
    numbers += [Number("training / inference", fmt.ratio(ratio)) for ratio in ratios["ratio"].head(1)]
    held = memory_composition(run).query("case == @row.case and method == @method")
    return Card(row.case, headline=headline, details=details, numbers=numbers, bars=[memory_bar(held)])


def _table(rows: pd.DataFrame, *more: Column) -> Table:
    """Build the table of measured and predicted peaks; `more` columns follow the case."""
    predicted = [
        Column("predicted_bytes", "Predicted", fmt.num_bytes, "the same", lambda row: row.predicted_reason),
        Column("error_frac", "Error", words.share_of, "predicted / measured - 1", _not_both),
        Column("held", "In range", None, "whether the measured peak is within the bounds", _not_both, unbroken=True,
               is_fault=lambda row: bool(row.outside_bytes > 0)),
        Column("low_bytes", "From", fmt.num_bytes, "lower bound of the estimate", _not_predicted),
        Column("high_bytes", "To", fmt.num_bytes, "upper bound of the estimate", _not_predicted),
    ]
    held = [None if pd.isna(row.outside_bytes) else "yes" if row.outside_bytes <= 0 else
            f"no, by {fmt.num_bytes(row.outside_bytes)}: please report" for row in fmt.rows(rows)]
    rows = rows.assign(held=pd.Series(held, rows.index, dtype="str"))
    columns = [
        CASE, *more, STATUS,
        Column("measured_bytes", "Measured", fmt.num_bytes, "peak of an iteration", lambda row: row.measured_reason),
        *(predicted if rows["predicted_bytes"].notna().any() else []),
    ]  # fmt: skip
    return table(rows, "Peak memory of each case", columns)


def _not_both(row: Any) -> str:
    return "not measured" if pd.isna(row.measured_bytes) else "not predicted"


def _not_predicted(row: Any) -> str:
    return str(row.predicted_reason or "not recorded")


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    limited = limited_cpu(run)
    lead = f"{words.limited_cpu(*limited)}." if limited else ""
    return Overview(_cards(run), _table(memory_peaks(run)), lead)


def _summary(run: Run) -> list[Item]:
    """Return a chapter for each series, with peaks, growth and the largest peak; then sizes that fit, and failures."""
    if not is_memory_run(run):
        return []
    rows = case_series(run).merge(memory_peaks(run), on="case")
    known = rows[["measured_bytes", "predicted_bytes"]].notna().any(axis="columns")
    rows = rows[known.groupby([rows[name] for name in _TOGETHER]).transform("any")]
    items: list[Item] = []
    for _, group in rows.groupby(_TOGETHER, sort=False):
        first = next(fmt.rows(group))
        title = ", ".join(filter(None, [words.model(first.workload, first.variant), first.mode, first.precision,
                                        first.device, first.settings, first.ranks]))
        items.append(Chapter(title, [_peaks(run, group), *_growth_lines(run, group), *_largest_peak(run, group)]))
    if limited := limited_cpu(run):
        items += [Line(), Line((words.limited_cpu(*limited), "warning"))]
    fits: list[Item] = []
    for _, room in memory_room(run).groupby(["target", "limit_bytes"], sort=False):
        largest = next(fmt.rows(room.sort_values("needed_bytes").tail(1)))
        others = {1: "", 2: "; so does the smaller case"}.get(len(room), f"; so do {len(room) - 1} smaller cases")
        fits.append(Line((largest.case, "strong"), f"  {words.room(largest)}{others}"))
    fits += [Line((f"{words.model(row.workload, row.variant)}, {row.mode}", "strong"), f"  {words.fit(row)}")
             for row in fmt.rows(memory_fits(run))]
    failures = _failures(run)
    return [*items, *([Line(), *fits] if fits else []), *([Line(), *failures] if failures else [])]


def _peaks(run: Run, rows: pd.DataFrame) -> Lines:
    """Return the table of peaks by size and batch, 12 evenly spaced rows at most, and how accurate estimates are."""
    step = -(-len(rows) // _MOST_ROWS)
    ratios = training_to_inference(run).sort_values("method", ascending=False, kind="stable")  # measured ones win
    by_case = {case: ratio for mode in ("train", "infer")
               for case, ratio in zip(ratios[f"{mode}_case"], ratios["ratio"], strict=True)}  # fmt: skip
    thinned = rows.sort_values(["batch_size", "num_positions"], kind="stable").iloc[::-step].iloc[::-1]
    thinned = thinned.assign(half_bytes=(thinned["high_bytes"] - thinned["low_bytes"]) / 2,
                             ratio=thinned["case"].map(by_case).astype(float))

    def unpredicted(row: Any) -> str:
        return (row.predicted_reason or "not recorded") if row.status == "ok" else str(row.status)

    def peak(value: float | None, reason: str | None = None) -> str:
        return "–" if reason == words.PREDICTED_ONLY and fmt.absent(value) else fmt.num_bytes(value, reason)

    columns = [Column("input_size", "Size", fmt.number), Column("batch_size", "Batch", fmt.number)]
    is_measured, is_predicted = rows["measured_bytes"].notna().any(), rows["predicted_bytes"].notna().any()
    if is_measured:
        columns.append(Column("measured_bytes", "Measured", peak, "",
                              lambda row: row.measured_reason if row.status == "ok" else row.status))
    if is_predicted:
        columns += [Column("predicted_bytes", "Predicted", fmt.num_bytes, "", unpredicted),
                    Column("half_bytes", "±", fmt.num_bytes, "", unpredicted)]
    if is_measured and is_predicted:
        columns.append(Column("error_frac", "Error", lambda value, _: words.share_of(value).replace("n/a", "–")))
    if rows["case"].isin(by_case).any():
        columns.append(Column("ratio", "Train ÷ infer", fmt.ratio, "", lambda row: "one mode"))
    notes = [Line((f"{len(thinned)} of {len(rows)} cases; the report has all", "dim"))] if step > 1 else []
    only_predicted = (thinned["status"] == "ok") & (thinned["measured_reason"] == words.PREDICTED_ONLY)
    if is_measured and only_predicted.any():
        notes.append(Line(("– was not measured, only predicted", "dim")))
    return Lines([table(thinned, "", columns), *_accuracy(rows), *notes])


def _accuracy(rows: pd.DataFrame) -> list[Line]:
    """Return a line for each measured peak outside of its estimate, a failure of charact; else that all are inside."""
    known, far = rows["outside_bytes"].notna().sum(), rows[rows["outside_bytes"] > 0]
    if far.empty:
        every = "the measured peak is" if known == 1 else f"all {known} measured peaks are"
        return [Line((f"{every} within the estimated interval", "dim"))] if known else []
    far = far.sort_values("outside_bytes", ascending=False, kind="stable")
    lines = [Line((row.case, "strong"), "  ", (words.outside(row), "failure"))
             for row in fmt.rows(far.head(_MOST_OUTSIDE))]
    more = f"and {len(far) - len(lines)} more of {known} measured peaks; the report has all"
    return [*lines, Line((more, "failure"))] if len(far) > len(lines) else lines


def _growth_lines(run: Run, rows: pd.DataFrame) -> list[Item]:
    """Return how the peak grows with the input size, a line for each batch size and method."""
    steps = memory_steps(run)
    lines = [Line("growth with the input size")]
    for row in fmt.rows(of_series(growth_by_input_size(run), next(fmt.rows(rows)), _TOGETHER)):
        growth = words.growth(row, of_series(steps, row, [*SERIES, "method"]))
        lines.append(Line(f"batch {row.batch_size}, {row.method}: {growth}"))
    return [Lines(lines)] if len(lines) > 1 else []


def _largest_peak(run: Run, rows: pd.DataFrame) -> list[Item]:
    """Return a bar with the largest case's peak by category, and its position in the iteration."""
    largest = next(fmt.rows(rows.sort_values(["measured_bytes", "predicted_bytes"], na_position="first").tail(1)))
    for moment in fmt.rows(peak_moments(run).query("case == @largest.case").head(1)):
        held = memory_composition(run).query("case == @largest.case and method == @moment.method")
        title = f"{largest.case} peaks ({fmt.num_bytes(moment.bytes)}, {moment.method}) in {words.place(moment)}"
        return [*map(Line, words.batches(largest)), memory_bar(held, title)]
    return []


def _failures(run: Run) -> list[Line]:
    """Return a line for each failed case; if it ran out of memory, with requested and allocated memory."""
    ran_out, held = out_of_memory(run), out_of_memory_composition(run)
    reasons = {row.case: words.ran_out(row, held[held["case"] == row.case]) for row in fmt.rows(ran_out)}
    failures = [failure_line(row.case, words.status_text(run, row.case, row.status),
                             reasons.get(row.case) or fmt.failure(row.status, row.reason))
                for row in fmt.rows(run.cases.query("status != 'ok'"))]
    return [*failures, *map(Line, words.searches(ran_out))] if failures else []


def _by_size(run: Run) -> Mapping[str, "pd.Series[float]"]:
    return {"predicted_peak_memory_bytes": memory_peaks(run).set_index("case")["predicted_bytes"]}


def _growth(run: Run) -> pd.DataFrame:
    rows, steps = growth_by_case(run), memory_steps(run)
    texts = [words.growth(row, of_series(steps, row, [*SERIES, "method"])) for row in fmt.rows(rows)]
    return rows.assign(text=texts)


def _steps(run: Run) -> pd.DataFrame:
    rows = memory_steps(run)
    return rows.assign(text=[words.step(row) for row in fmt.rows(rows)])


_PARTS = {
    "memory": CasePart(memory_composition, ("category", "bytes", "share_frac", "phase", "method"),
                       whole=True),
    "peak": CasePart(peak_moments, ("method", "phase", "layer", "operator", "bytes"),
                     whole=True),
    "growth": CasePart(_growth, ("method", "shape", "num_sizes", "position", "slope_bytes", "sample_slope_bytes",
                                 "fixed_bytes", "spread_frac", "text"), whole=True),
    "step": CasePart(_steps, ("method", "from_size", "bytes", "category", "category_bytes", "phase", "layer",
                              "operator", "text"), whole=True),
    "needs": CasePart(memory_needs, ("target", "needed_bytes", "device_memory_bytes", "margin_bytes"), is_list=False),
    "out_of_memory": CasePart(out_of_memory, ("phase", "requested_bytes", "free_bytes", "limit_bytes", "held_bytes",
                                              "fits_batch_size", "fits_input_size", "fits_reason"), is_list=False),
    "largest_fit": CasePart(memory_fits, ("searched", "target", "limit_bytes", "value", "needed_bytes", "margin_bytes",
                                          "next_value", "next_needed_bytes", "verified", "next_verified", "ended_by"),
                            is_list=False),
}  # fmt: skip


def _answer(run: Run, cases: pd.DataFrame) -> str:
    """Return the largest size that fits if one was searched, else the range of peaks."""
    if len(fits := memory_fits(run)) == 1:
        return "; ".join(f"{words.model(row.workload, row.variant)}, {row.mode}: {words.fit(row)}"
                         for row in fmt.rows(fits))
    rows = memory_peaks(run)
    rows["peak_bytes"] = rows["measured_bytes"].fillna(rows["predicted_bytes"])
    how = "estimated" if rows["measured_bytes"].isna().all() else "measured" if rows["measured_bytes"].notna().all() \
        else "measured, or estimated"
    return takes(rows, "peak_bytes", fmt.num_bytes, f"({how})", ("peaks at", "peak at"))


KIND = CaseKind("memory", 40, _overview, memory_peaks, in_one_table(_table), answer=_answer, summary=_summary,
                parts=_PARTS, by_size=_by_size,
                lead="Cards show the largest case of each series that fits; the table has all cases.")
