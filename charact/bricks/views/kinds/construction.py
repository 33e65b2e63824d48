"""Models whose latency is constructed from bricks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import passes_taken
from charact.bricks.analysis import tables
from charact.bricks.analysis.tables import latency_errors, model_summary, normalized_latency
from charact.bricks.views import figures
from charact.bricks.views.summary import constructed
from charact.bricks.views.tables import (
    COLORS,
    LABELS,
    errors_table,
    no_error,
    reason_of,
    signed_share,
    with_labels,
)
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table
from charact.views.document import Bar, Block, Card, Number, Part
from charact.views.html.elements.blocks import CASE, STATUS, failure_of
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table

_NUM_CARDS = 11
_NUM_DRAWN = 120


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    """Build the overview: cards of the longest models, the legend of their bars, and a table of all models."""
    rows = tables.model_summary(run)
    parts = tables.time_by_layers(run).groupby(["case", "operator_type"], sort=False, as_index=False)
    kinds = parts[["time_s", "share_frac"]].sum()
    longest = rows.sort_values("latency_s", ascending=False, kind="stable", na_position="first").head(_NUM_CARDS)
    shown = [*_whole_cards(run), *(_card(row, kinds[kinds["case"] == row.case]) for row in fmt.rows(longest))]
    note = f"Cards show the {_NUM_CARDS} slowest of {len(rows)} models." if len(rows) > _NUM_CARDS else ""
    return Overview(shown, _table(rows, note=note))


def _whole_cards(run: Run) -> list[Card]:
    """Return a card per mode with the errors over all models; none if fewer than two models were measured."""
    errors = latency_errors(normalized_latency(run)).query("phase == 'all' and num_models > 1")
    rank = errors["strategy"].map(list(COLORS).index)
    best = errors.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates("mode")
    saved = [Number("time saved", fmt.ratio(row.speedup)) for row in fmt.rows(tables.time_saved(run))]
    return [
        Card(
            f"{row.num_models} measured models · {row.mode} · {LABELS[row.strategy]}", several=True,
            headline=Number("mean |error|", fmt.share(row.mean_abs_error_frac)),
            details=[f"largest error: {row.worst_case}"],
            numbers=[Number("geometric mean", fmt.number(row.geometric_mean)),
                     Number("worst", signed_share(row.worst_error_frac)),
                     *saved],
        ) for row in fmt.rows(best)
    ]  # fmt: skip


def _card(row: Any, parts: pd.DataFrame) -> Card:
    if pd.isna(row.latency_s):
        return Card(row.case, failure=failure_of(row.status, row.reason) or ("no data", str(row.reason)))
    plain = [] if row.strategy != "corrected" else [f"plain sum {fmt.seconds(row.plain_s)}"]
    return Card(
        row.case, failure=failure_of(row.status, row.reason),
        headline=Number(LABELS[row.strategy], fmt.seconds(row.latency_s)),
        details=[f"95 % interval {fmt.interval(row.low_s, row.high_s, 'fewer than 6 rounds')}", *plain],
        numbers=[Number("measured", fmt.seconds(row.measured_s, "not measured")),
                 Number("error", signed_share(row.error_frac, "not measured"))],
        bars=[Bar("Time by type of layer", [
            Part(part.operator_type, float(part.share_frac), palette.operator_type(part.operator_type))
            for part in fmt.rows(parts)])],
    )  # fmt: skip


def _table(rows: pd.DataFrame, *more: Column, note: str = "") -> Table:
    """Build the table of latencies by the preferred strategy; `more` columns follow the case."""
    columns = [
        CASE, *more, STATUS, Column("latency_s", "Latency", fmt.seconds, "constructed from bricks", reason_of),
        Column("strategy_label", "Strategy", None, "corrected, where the machine was calibrated", reason_of,
               unbroken=True),
        Column("plain_s", "Plain sum", fmt.seconds, "of the bricks’ times", reason_of),
        Column("measured_s", "Measured", fmt.seconds, "median iteration of the model itself", no_error),
        Column("error_frac", "Error", signed_share, "constructed / measured − 1", no_error),
        Column("g", "G", fmt.number, "largest number of layers in a segment", reason_of),
    ]  # fmt: skip
    return table(with_labels(rows), "Constructed latency of each model", columns, note)


def _is_compared(run: Run) -> bool:
    """Return whether a record holds constructed models that were also measured."""
    return "construct" in passes_taken(run) and bool(model_summary(run)["normalized"].notna().any())


def _side_by_side(runs: Sequence[Run]) -> list[Block]:
    """Draw normalized latencies of each model, one color per record; none unless two records hold measured models."""
    measured = {run.run_id: model_summary(run).dropna(subset=["normalized"]) for run in runs}
    known = [run for run in runs if len(measured[run.run_id])]
    if len(known) < 2:
        return []
    labels = _labels(known)
    rows = pd.concat([measured[run.run_id].assign(record=labels[run.run_id]) for run in known])
    colors = {label: palette.CASES[number % len(palette.CASES)] for number, label in enumerate(labels.values())}
    errors = pd.concat([latency_errors(normalized_latency(run)).assign(record=labels[run.run_id]) for run in known])
    errors = errors[errors["phase"] == "all"]
    strategies = rows.drop_duplicates("record").set_index("record")["strategy"]
    chosen = errors[errors["strategy"] == errors["record"].map(strategies)].drop_duplicates("record")
    drawn = rows[rows["case"].isin(rows["case"].unique()[:_NUM_DRAWN])]
    means = {row.record: row.geometric_mean for row in fmt.rows(chosen)}
    figure = figures.normalized(drawn, "record", colors, means)
    return [Block(title="Normalized latency of constructed models", figures=[figure], legend=list(colors.items()),
                  table=errors_table(errors, Column("record", "Record", unbroken=True)))]  # fmt: skip


def _labels(runs: Sequence[Run]) -> dict[str, str]:
    """Return a name for each record: its G if these are distinct, else its run ID."""
    values = {run.run_id: model_summary(run)["g"].dropna().unique() for run in runs}
    by_g = {run_id: f"G = {g[0]:.0f}" for run_id, g in values.items() if len(g) == 1}
    return by_g if len(set(by_g.values())) == len(runs) else {run.run_id: run.run_id for run in runs}


def _by_size(run: Run) -> Mapping[str, "pd.Series[float]"]:
    return {"constructed_latency_s": model_summary(run).set_index("case")["latency_s"]}


_PARTS = {"layer_types": CasePart(tables.time_by_layers, ("layers", "operator_type", "time_s", "share_frac"),
                                  ("layers", "time_s", "share_frac"))}  # fmt: skip

KIND = CaseKind("construction", 70, _overview, model_summary, in_one_table(_table), summary=constructed,
                parts=_PARTS, by_size=_by_size, is_compared=_is_compared, side_by_side=_side_by_side)
