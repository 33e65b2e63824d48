"""The section Constructed latency: latencies of models, their errors, and their composition."""

from typing import Any

import pandas as pd

from charact.bricks.analysis import tables
from charact.bricks.analysis.tables import NOT_RUN, latency_errors, normalized_latency
from charact.bricks.views import figures
from charact.bricks.views.tables import (
    COLORS,
    ERROR,
    LABELS,
    LAYERS,
    MEASURED,
    NO_INTERVAL,
    STRATEGY,
    errors_table,
    legend_of_types,
    reason_of,
    regression_text,
    with_labels,
)
from charact.record.reader import Run
from charact.views.document import Block, Body, Legend
from charact.views.html.elements.blocks import CASE, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, top

_NUM_DRAWN = 120
_NUM_BARS = 60
_NUM_TYPES = 12
_LEAD = (
    "Latencies constructed from the times of bricks. The plain sum adds all times; the longest path "
    "counts only the slowest path through the model; the corrected sum uses coefficients from a calibration of this "
    "machine. An interval shows the variation over rounds, but no systematic error."
)


def models(run: Run) -> Body:
    """Build the section: constructed against measured latencies, the time that bricks save, and layer types."""
    rows = normalized_latency(run).query("phase == 'all'")
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "construct"))])
    blocks = [*_measured(rows), *_saved(run), _latencies(run), *_by_layers(run), *_why(run)]
    return Body(lead=_LEAD, blocks=blocks)


def _measured(rows: pd.DataFrame) -> list[Block]:
    """Compare with measured latencies; none if no model was measured."""
    known = rows.dropna(subset=["normalized"])
    if known.empty:
        return [Block(note="No model was measured: charact bricks construct --verify measures them on this machine, "
                           "to compare with their constructed latencies.")]  # fmt: skip
    drawn = known[known["strategy"] != "critical_path"]
    drawn = drawn if len(drawn) else known
    errors = latency_errors(known)
    legend = [(LABELS[name], color) for name, color in COLORS.items() if name in set(drawn["strategy"])]
    return [
        Block(title="Constructed against measured", table=errors_table(errors)),
        Block(figures=[figures.against_measured(drawn, COLORS)], legend=legend,
              note="The band is ± 10 %; labels name the largest outliers."),
        _normalized(drawn, legend),
    ]  # fmt: skip


def _normalized(rows: pd.DataFrame, legend: Legend) -> Block:
    farthest = rows["error_frac"].abs().groupby(rows["case"]).max().sort_values(ascending=False)
    kept = rows[rows["case"].isin(farthest.index[:_NUM_DRAWN])]
    means = {row.strategy: row.geometric_mean for row in fmt.rows(latency_errors(rows.assign(mode="any")))}
    last = kept.groupby("case")["normalized"].transform("last")
    kept = kept.assign(last=last).sort_values("last", kind="stable")
    drawing = figures.normalized(kept, "strategy", COLORS, means)
    few = f"The figure shows the {_NUM_DRAWN} farthest from 1 of {len(farthest)}." if len(farthest) > _NUM_DRAWN else ""
    columns = [
        CASE, STRATEGY, Column("latency_s", "Constructed", fmt.seconds), MEASURED,
        Column("normalized", "Normalized", fmt.number, "constructed / measured"),
        ERROR,
    ]  # fmt: skip
    return Block(title="Normalized latency", figures=[drawing], legend=legend, note=few,
                 table=table(with_labels(rows), "Normalized latency of each model", columns))  # fmt: skip


def _saved(run: Run) -> list[Block]:
    rows = tables.time_saved(run)
    if rows.empty:
        return []
    columns = [
        Column("num_models", "Models", fmt.number, "with times of all their bricks"),
        Column("models_s", "Each model once", fmt.seconds, "sum of their segments"),
        Column("suite_s", "Each brick once", fmt.seconds, "of these models; timed bricks only"),
        Column("speedup", "Speedup", fmt.ratio, "at the same number of repeats"),
        Column("speedup_with_set_up", "With setup", fmt.ratio,
               "includes inputs, weights and untimed calls of all bricks of the suite",
               lambda row: row.reason),
    ]  # fmt: skip
    caption = "Speedup of timing bricks instead of models"
    note = " ".join(regression_text(row) for row in fmt.rows(tables.predicted_times(run)))
    return [Block(title="Benchmarking time saved", table=table(rows, caption, columns), note=note)]


def _latencies(run: Run) -> Block:
    def no_interval(row: Any) -> str:
        return reason_of(row) or NO_INTERVAL

    rows = normalized_latency(run)
    columns = [
        CASE, STRATEGY, Column("phase", "Phase", meaning="all: the whole iteration"),
        Column("latency_s", "Latency", fmt.seconds, "", reason_of),
        Column("low_s", "95 % from", fmt.seconds, "", no_interval),
        Column("high_s", "95 % to", fmt.seconds, "", no_interval),
        MEASURED, ERROR,
    ]  # fmt: skip
    return Block(title="Every strategy", table=table(with_labels(rows), "Latency of each model by strategy", columns))


def _by_layers(run: Run) -> list[Block]:
    rows = tables.time_by_layers(run)
    if rows.empty:
        return []
    by_kind = rows.groupby(["case", "operator_type"], sort=False, as_index=False)[["time_s", "share_frac"]].sum()
    sums = by_kind.groupby("case", sort=False)["time_s"].sum().sort_values(ascending=False, kind="stable")
    drawn = by_kind[by_kind["case"].isin(sums.index[:_NUM_BARS])]
    order = by_kind.groupby("operator_type")["time_s"].sum().sort_values(ascending=False).index
    drawn = drawn.sort_values("operator_type", key=lambda names: names.map(order.get_loc), kind="stable")
    drawn = drawn.sort_values("case", key=lambda cases: cases.map(sums), ascending=False, kind="stable")
    columns = [
        CASE, LAYERS, Column("num_uses", "Uses", fmt.number, "in one iteration"),
        Column("time_s", "Time", fmt.seconds, "of all uses"),
        share_column("share_frac", "Share", "of the plain sum"),
    ]  # fmt: skip
    shown, note = top(rows, _NUM_TYPES)
    few = f"The figure shows the {_NUM_BARS} slowest of {len(sums)} models." if len(sums) > _NUM_BARS else ""
    return [Block(
        title="By layer type", figures=[figures.by_layers(drawn)], legend=legend_of_types(drawn), note=few,
        table=table(shown, "Constructed latency by layer type", columns, note),
    )]  # fmt: skip


def _why(run: Run) -> list[Block]:
    """Return the reasons why models have no latency, no corrected latency, or no measurement."""
    rows = tables.model_summary(run)
    failed = [(row.case, fmt.missing(row.reason)) for row in fmt.rows(rows) if pd.isna(row.latency_s)]
    found = [Block(title="Not constructed", missing=failed)] if failed else []
    latencies = normalized_latency(run).query("strategy == 'corrected'")
    built = latencies[~latencies["case"].isin([case for case, _ in failed])]
    reasons = built.loc[built["latency_s"].isna(), "reason"].dropna().unique()
    found += [Block(title="Not corrected", note=fmt.missing("; ".join(reasons)))] if len(reasons) else []
    unmeasured = latencies[latencies["phase"].eq("all") & latencies["measured_reason"].notna()
                           & latencies["measured_reason"].ne(NOT_RUN)]  # fmt: skip
    missing = [(row.case, fmt.missing(row.measured_reason)) for row in fmt.rows(unmeasured)]
    return found + ([Block(title="Not measured", missing=missing)] if missing else [])


SECTION = Section("constructed", "Constructed latency", 60, models, ("construct",), ("constructions",))
