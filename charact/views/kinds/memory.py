"""Cases whose peak memory is measured or estimated."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import pandas as pd
from rich.console import RenderableType

from charact.analysis.memory.composition import memory_composition, memory_needs, memory_peaks, peak_moments
from charact.analysis.memory.growth import (
    SERIES,
    growth_by_case,
    memory_growth,
    memory_steps,
    named_series,
    of_series,
    training_to_inference,
)
from charact.analysis.memory.limits import limited_cpu, memory_fits, memory_room, out_of_memory
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table
from charact.views.document import Card, Number
from charact.views.html.elements.blocks import CASE, STATUS, failure_of, memory_bar
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables.model import Column, Table, table
from charact.views.terminal import memory as terminal


def _cards(run: Run) -> list[Card]:
    """Return a card for the largest case of each series that fits, and one per reason for other failed cases."""
    rows = named_series(run).merge(memory_peaks(run), on="case")
    held, facts = memory_composition(run), _Facts.of(run)
    ran_out = {row.case: row for row in fmt.rows(out_of_memory(run))}
    shown: list[Card] = []
    for _, series in rows.groupby(SERIES, sort=False, dropna=False):
        well = series[series["status"] == "ok"].sort_values("input_size")
        if len(well):
            shown += _cards_of_series(well, held, facts)
        failed = series[series["status"] != "ok"]
        failed = failed if well.empty else failed[failed["status"] != "oom"]
        groups = failed.groupby(["status", "reason"], sort=False, dropna=False)
        shown += [_failed(run, group, ran_out.get(group["case"].iloc[0])) for _, group in groups]
    return shown


def _cards_of_series(rows: pd.DataFrame, held: pd.DataFrame, facts: "_Facts") -> list[Card]:
    """Return a card for the largest case, and one for a measured peak outside of its estimate: a failure of charact."""
    card = _card(next(fmt.rows(rows.tail(1))), held, facts)
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


def _failed(run: Run, rows: pd.DataFrame, ran_out: Any | None) -> Card:
    first = next(fmt.rows(rows))
    status, reason = failure_of(first.status, first.reason) or ("", "")
    fits = "" if ran_out is None else f"; {words.what_would_fit(ran_out)}"
    return Card(first.case, failure=(words.failed(run, first.case, status), f"{reason}{_and_more(len(rows))}{fits}"))


@dataclass(frozen=True)
class _Facts:
    """Facts shown next to the peaks: their location, growth, the training-to-inference ratio, and what fits."""

    snapshots: pd.DataFrame
    growth: pd.DataFrame
    ratios: pd.DataFrame
    fits: pd.DataFrame
    room: pd.DataFrame

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(peak_moments(run), memory_growth(run), training_to_inference(run), memory_fits(run),
                   memory_room(run))


def _card(row: Any, held: pd.DataFrame, facts: _Facts) -> Card:
    method = "measured" if pd.notna(row.measured_bytes) else "predicted"
    peak_bytes = getattr(row, f"{method}_bytes")
    if pd.isna(peak_bytes):
        return Card(row.case, failure=("no data", row.measured_reason))
    parts = held[(held["case"] == row.case) & (held["method"] == method) & (held["bytes"] > 0)]
    snapshots = facts.snapshots.query("case == @row.case and method == @method")
    if method == "predicted":
        detail = f"uncertainty {words.plus_minus(row.low_bytes, row.high_bytes, 'not recorded')}"
    else:
        detail = f"predicted {fmt.num_bytes(row.predicted_bytes, row.predicted_reason)}"
        detail += f", {words.share_of(row.error_frac)}" if pd.notna(row.error_frac) else ""
        detail += ", measured within its interval" if row.outside_bytes == 0 else ""
    peak = Number(f"at the peak, {method}", fmt.num_bytes(peak_bytes))
    details = [f"in {words.place(next(fmt.rows(snapshots)))}", detail, *words.batches(row)]
    fits = facts.fits[facts.fits["case"] == row.case]
    if len(fits):
        (fit, of_what), *more = words.fit_in_brief(next(fmt.rows(fits)))
        details = [*more, f"{peak.text} {peak.name}, {details[0]}", detail]
    room = facts.room[facts.room["case"] == row.case]
    if len(room):
        details = [words.room(next(fmt.rows(room))), *details]
    return Card(
        row.case,
        headline=Number(of_what, fit) if len(fits) else peak,
        details=details,
        numbers=_numbers(row, method, facts),
        bars=[memory_bar(parts)],
    )  # fmt: skip


def _numbers(row: Any, method: str, facts: _Facts) -> list[Number]:
    """Return the growth of the card's series and its training-to-inference ratio; none of those that are not known."""
    line = next(fmt.rows(of_series(facts.growth.query("method == @method"), row)))
    ratios = facts.ratios.query("method == @method")
    ratio = ratios.loc[(ratios["train_case"] == row.case) | (ratios["infer_case"] == row.case), "ratio"]
    growth = [Number(f"a {line.position} of a sample", fmt.num_bytes(line.sample_slope_bytes)),
              Number("fixed", fmt.num_bytes(line.fixed_bytes))]  # fmt: skip
    return [*(growth if pd.notna(line.sample_slope_bytes) else []),
            *([Number("training / inference", fmt.ratio(ratio.iloc[0]))] if len(ratio) else [])]


def _table(rows: pd.DataFrame, *more: Column) -> Table:
    """Build the table of measured and predicted peaks; `more` columns follow the case."""
    predicted = [
        Column("predicted_bytes", "Predicted", fmt.num_bytes, "the same", lambda row: row.predicted_reason),
        Column("error_frac", "Error", words.share_of, "predicted / measured - 1", _not_both),
        Column("held", "In range", None, "whether the measured peak is within the bounds", _not_both, unbroken=True,
               is_fault=_is_outside),
        Column("low_bytes", "From", fmt.num_bytes, "lower bound of the estimate", _not_predicted),
        Column("high_bytes", "To", fmt.num_bytes, "upper bound of the estimate", _not_predicted),
    ]
    rows = rows.assign(held=pd.Series([_held(row) for row in fmt.rows(rows)], rows.index, dtype="str"))
    columns = [
        CASE, *more, STATUS,
        Column("measured_bytes", "Measured", fmt.num_bytes, "peak of an iteration", lambda row: row.measured_reason),
        *(predicted if rows["predicted_bytes"].notna().any() else []),
    ]  # fmt: skip
    return table(rows, "Peak memory of each case", columns)


def _held(row: Any) -> str | None:
    """Return whether the measured peak is within the bounds of the estimate, None if one of them is missing."""
    if pd.isna(row.outside_bytes):
        return None
    return f"no, by {fmt.num_bytes(row.outside_bytes)}: please report" if row.outside_bytes > 0 else "yes"


def _is_outside(row: Any) -> bool:
    return bool(row.outside_bytes > 0)


def _not_both(row: Any) -> str:
    return "not measured" if pd.isna(row.measured_bytes) else "not predicted"


def _not_predicted(row: Any) -> str:
    return str(row.predicted_reason or "not recorded")


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    limited = limited_cpu(run)
    lead = f"{words.limited_cpu(*limited)}." if limited else ""
    return Overview(_cards(run), _table(memory_peaks(run)), lead)


def _details(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    return terminal.blocks(run)


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
                       ("method", "category", "bytes", "share_frac")),
    "peak": CasePart(peak_moments, ("method", "phase", "layer", "operator", "bytes"),
                     ("method", "phase", "layer", "operator")),
    "growth": CasePart(_growth, ("method", "shape", "num_sizes", "position", "slope_bytes", "sample_slope_bytes",
                                 "fixed_bytes", "spread_frac", "text"), ("method", "text")),
    "step": CasePart(_steps, ("method", "from_size", "bytes", "category", "category_bytes", "phase", "layer",
                              "operator", "text"), ("method", "text")),
    "needs": CasePart(memory_needs, ("target", "needed_bytes", "device_memory_bytes", "margin_bytes"), is_list=False),
    "out_of_memory": CasePart(out_of_memory, ("phase", "requested_bytes", "free_bytes", "limit_bytes", "held_bytes",
                                              "fits_batch_size", "fits_input_size", "fits_reason"), is_list=False),
    "largest_fit": CasePart(memory_fits, ("searched", "target", "limit_bytes", "value", "needed_bytes", "margin_bytes",
                                          "next_value", "next_needed_bytes", "verified", "next_verified"),
                            is_list=False),
}  # fmt: skip

KIND = CaseKind("memory", 40, _overview, memory_peaks, in_one_table(_table), details=_details, shows_failures=True,
                parts=_PARTS, by_size=_by_size,
                lead="Cards show the largest case of each series that fits; the table has all cases.")
