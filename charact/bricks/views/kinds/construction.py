"""Models whose latency is constructed from bricks."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import passes_taken
from charact.bricks.analysis import tables
from charact.bricks.analysis.tables import latency_errors, model_summary, normalized_latency
from charact.bricks.views import figures
from charact.bricks.views.tables import (
    ERROR,
    LABELS,
    MEASURED,
    NO_INTERVAL,
    bar_of_types,
    errors_table,
    reason_of,
    regression_text,
    signed_share,
    with_labels,
)
from charact.record.reader import Run
from charact.record.schema import STRATEGIES
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Block, Card, Item, Line, Lines, Number, Numbers, failure_line
from charact.views.html.elements.blocks import CASE, STATUS, failure_of
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table

_NUM_CARDS = 11
_NUM_DRAWN = 120
_NUM_BARS = 6
"""Largest number of bars in the terminal."""


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    """Build a card per mode with the errors over all models, cards of the longest models, and a table of all models."""
    rows, parts = model_summary(run), tables.time_by_layers(run)
    longest = rows.sort_values("latency_s", ascending=False, kind="stable", na_position="first").head(_NUM_CARDS)
    errors = latency_errors(normalized_latency(run)).query("phase == 'all' and num_models > 1")
    rank = errors["strategy"].map(list(LABELS).index)
    best = errors.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates("mode")
    saved = [Number("time saved", fmt.ratio(row.speedup)) for row in fmt.rows(tables.time_saved(run))]
    cards = [
        Card(f"{row.num_models} measured models · {row.mode} · {LABELS[row.strategy]}", several=True,
             headline=Number("mean |error|", fmt.share(row.mean_abs_error_frac)),
             details=[f"largest error: {row.worst_case}"],
             numbers=[Number("geometric mean", fmt.number(row.geometric_mean)),
                      Number("worst", signed_share(row.worst_error_frac)), *saved])
        for row in fmt.rows(best)]
    cards += [_card(row, parts[parts["case"] == row.case]) for row in fmt.rows(longest)]
    note = f"Cards show the {_NUM_CARDS} slowest of {len(rows)} models." if len(rows) > _NUM_CARDS else ""
    return Overview(cards, _table(rows, note=note))


def _card(row: Any, parts: pd.DataFrame) -> Card:
    if pd.isna(row.latency_s):
        return Card(row.case, failure=failure_of(row.status, row.reason) or ("no data", str(row.reason)))
    plain = [] if row.strategy != "corrected" else [f"plain sum {fmt.seconds(row.plain_s)}"]
    return Card(
        row.case, failure=failure_of(row.status, row.reason),
        headline=Number(LABELS[row.strategy], fmt.seconds(row.latency_s)),
        details=[f"95 % interval {fmt.interval(row.low_s, row.high_s, NO_INTERVAL)}", *plain],
        numbers=[Number("measured", fmt.seconds(row.measured_s, "not measured")),
                 Number("error", signed_share(row.error_frac, "not measured"))],
        bars=[bar_of_types("Time by type of layer", parts)])


def _table(rows: pd.DataFrame, *more: Column, note: str = "") -> Table:
    """Build the table of latencies by the preferred strategy; `more` columns follow the case."""
    columns = [
        CASE, *more, STATUS, Column("latency_s", "Latency", fmt.seconds, "constructed from bricks", reason_of),
        Column("strategy_label", "Strategy", None, "corrected, where the machine was calibrated", reason_of,
               unbroken=True),
        Column("plain_s", "Plain sum", fmt.seconds, "of the bricks’ times", reason_of), MEASURED, ERROR,
        Column("g", "G", fmt.number, "largest number of layers in a segment", reason_of),
    ]  # fmt: skip
    return table(with_labels(rows), "Constructed latency of each model", columns, note)


def _summary(run: Run) -> list[Item]:
    """Return latencies by all strategies, errors, time saved, shares by layer type, and models without a latency."""
    models, latencies = model_summary(run), normalized_latency(run).query("phase == 'all'")
    built, errors = models[models["latency_s"].notna()], latency_errors(latencies)
    items: list[Item] = [_by_strategy(built, latencies)] if len(built) else []
    if len(errors):
        items += [Line(), Numbers(errors_table(errors), (
            "mode", "num_models", "geometric_mean", "mean_abs_error_frac", "worst_error_frac"), strong=False),
            Line((f"worst: {', '.join(dict.fromkeys(errors['worst_case']))}", "dim"))]
    items += [Line((regression_text(row), "dim")) for row in fmt.rows(tables.predicted_times(run))]
    for row in fmt.rows(tables.time_saved(run)):
        those = "the model" if row.num_models == 1 else f"the {row.num_models:.0f} models"
        items += [Line(), Line(
            "benchmarking time: bricks take ", (fmt.seconds(row.suite_s), "strong"),
            f" once, {those} {fmt.seconds(row.models_s)}: ", (fmt.ratio(row.speedup), "strong"),
            f", with the whole suite's set-up {fmt.ratio(row.speedup_with_set_up, row.reason)}")]
    layers = tables.time_by_layers(run)
    cases = list(layers["case"].unique())
    for case in cases[:_NUM_BARS]:
        items += [Line(), bar_of_types(f"{case} by layer type (plain sum)", layers[layers["case"] == case])]
    if len(cases) > _NUM_BARS:
        items.append(Line((f"{len(cases) - _NUM_BARS} more models: see the report", "dim")))
    failed = [failure_line(row.case, "not constructed", str(row.reason))
              for row in fmt.rows(models[models["latency_s"].isna()])]
    return [*items, *([Lines(failed)] if failed else [])]


def _by_strategy(built: pd.DataFrame, latencies: pd.DataFrame) -> Numbers:
    """Return the latency of each model by strategy, its interval, and its measurement."""
    rows = built.assign(interval=[fmt.interval(row.low_s, row.high_s, NO_INTERVAL) for row in fmt.rows(built)])
    columns = [CASE]
    for strategy in STRATEGIES:
        known = latencies[latencies["strategy"] == strategy].set_index("case")
        rows[strategy] = rows["case"].map(known["latency_s"])
        rows[f"why_{strategy}"] = rows["case"].map(known["reason"])
        columns.append(Column(strategy, LABELS[strategy], fmt.seconds,
                              reason=lambda row, name=f"why_{strategy}": getattr(row, name)))  # type: ignore[misc]
    columns += [Column("interval", "95 % interval"), MEASURED, ERROR]
    return Numbers(table(rows, "", columns), [column.name for column in columns[1:]])


def _side_by_side(runs: Sequence[Run]) -> list[Block]:
    """Draw normalized latencies of each model, one color per record; none unless two records hold measured models."""
    measured = {run.run_id: model_summary(run).dropna(subset=["normalized"]) for run in runs}
    known = [run for run in runs if len(measured[run.run_id])]
    if len(known) < 2:
        return []
    values = {run.run_id: model_summary(run)["g"].dropna().unique() for run in known}
    by_g = {run_id: f"G = {g[0]:.0f}" for run_id, g in values.items() if len(g) == 1}
    labels = by_g if len(set(by_g.values())) == len(known) else {run.run_id: run.run_id for run in known}
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


_PARTS = {"layer_types": CasePart(tables.time_by_layers, ("layers", "operator_type", "time_s", "share_frac"),
                                  whole=True)}  # fmt: skip


def _answer(run: Run, cases: pd.DataFrame) -> str:
    return takes(model_summary(run), "latency_s", fmt.seconds, "an iteration, constructed from bricks")


KIND = CaseKind(
    "construction", 70, _overview, model_summary, in_one_table(_table), answer=_answer, summary=_summary, parts=_PARTS,
    by_size=lambda run: {"constructed_latency_s": model_summary(run).set_index("case")["latency_s"]},
    is_compared=lambda run: "construct" in passes_taken(run) and bool(model_summary(run)["normalized"].notna().any()),
    side_by_side=_side_by_side)
