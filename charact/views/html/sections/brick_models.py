"""The section of models that were constructed from bricks: latencies, how right they are, what they are made of."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.bricks import record_tables
from charact.analysis.bricks.record_tables import model_summary
from charact.analysis.bricks.verification import NOT_RUN, latency_errors, normalized_latency
from charact.analysis.common.pass_status import passes_taken
from charact.record.reader import Run
from charact.views.html.elements import bricks as figures
from charact.views.html.elements.blocks import CASE, STATUS, Block, Body, Card, Legend, failure_of, why_nothing
from charact.views.html.sections.bricks import LAYERS, legend_of_types
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.brick_text import predicted_words
from charact.views.tables.model import Column, Table, share_column, table, top

NUM_CARDS = 11
_NUM_DRAWN = 120
_NUM_BARS = 60
_NUM_TYPES = 12
_COLORS = {"corrected": "#4477AA", "sequential": "#EE6677", "critical_path": "#CCBB44", "paper": "#AA3377"}
WORDS = {"sequential": "plain sum", "critical_path": "longest path", "corrected": "corrected sum",
         "paper": "plain sum, the paper’s method"}
_LEAD = (
    "Latencies of models, built from the times of their bricks. The plain sum adds these up; the longest path counts "
    "the slowest way through the model only; corrected is the sum with what calibration models taught of this machine. "
    "An interval tells how rounds scatter, not what bricks cannot see."
)
STRATEGY = Column("strategy_words", "Strategy", unbroken=True)


def _reason(row: Any) -> str | None:
    """Why a row lacks its latency, in a word or two: the whole reason may be long, and stands below the tables."""
    if pd.notna(row.latency_s):
        return None
    return "not corrected" if row.strategy == "corrected" else "not constructed"


def _no_error(row: Any) -> str:
    return _reason(row) or "not measured"


def _no_interval(row: Any) -> str:
    return _reason(row) or "fewer than 6 rounds"


def models(run: Run) -> Body:
    """Constructed latencies: against measured ones, normalized, the time that bricks save, and by kind of layer."""
    rows = normalized_latency(run).query("phase == 'all'")
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "construct"))])
    blocks = [*_measured(rows), *_saved(run), _latencies(run), *_by_layers(run), *_memory(run), *_why(run)]
    return Body(lead=_LEAD, blocks=blocks)


def worded(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with their strategies in words."""
    return rows.assign(strategy_words=rows["strategy"].map(WORDS))


def _measured(rows: pd.DataFrame) -> list[Block]:
    """Against what was measured; nothing where no model was run."""
    known = rows.dropna(subset=["normalized"])
    if known.empty:
        return [Block(note="No model was run itself, so there is nothing to hold these latencies against: "
                           "charact bricks construct --verify does on this machine.")]  # fmt: skip
    drawn = known[known["strategy"] != "critical_path"]
    drawn = drawn if len(drawn) else known
    errors = latency_errors(known)
    legend = [(WORDS[name], color) for name, color in _COLORS.items() if name in set(drawn["strategy"])]
    return [
        Block(title="Constructed against measured", table=errors_table(errors)),
        Block(figures=[figures.against_measured(drawn, _COLORS)], legend=legend,
              note="The band is ± 10 %; what lies farthest outside of it is named."),
        _normalized(drawn, legend),
    ]  # fmt: skip


def _normalized(rows: pd.DataFrame, legend: Legend) -> Block:
    farthest = rows["error_frac"].abs().groupby(rows["case"]).max().sort_values(ascending=False)
    kept = rows[rows["case"].isin(farthest.index[:_NUM_DRAWN])]
    means = {row.strategy: row.geometric_mean for row in fmt.rows(latency_errors(rows.assign(mode="any")))}
    last = kept.groupby("case")["normalized"].transform("last")
    kept = kept.assign(last=last).sort_values("last", kind="stable")
    drawing = figures.normalized(kept, "strategy", _COLORS, means)
    few = f"Drawn are the {_NUM_DRAWN} farthest from 1 of {len(farthest)}." if len(farthest) > _NUM_DRAWN else ""
    columns = [
        CASE, STRATEGY, Column("latency_s", "Constructed", fmt.seconds), Column("measured_s", "Measured", fmt.seconds),
        Column("normalized", "Normalized", fmt.number, "constructed / measured"),
        Column("error_frac", "Error", signed_share, "constructed / measured − 1"),
    ]  # fmt: skip
    return Block(title="Normalized latency", figures=[drawing], legend=legend, note=few,
                 table=table(worded(rows), "Normalized latency of each model", columns))  # fmt: skip


def signed_share(value: float | None, reason: str | None = None) -> str:
    """An error with its sign: −2.4 %."""
    if value is None or fmt.absent(value):
        return fmt.missing(reason)
    return f"{'−' if value < 0 else '+'}{100 * abs(value):.1f} %"


def errors_table(errors: pd.DataFrame, *more: Column) -> Table:
    """How right each strategy is over all measured models; `more` columns stand first."""
    columns = [
        *more, STRATEGY, Column("mode", "Mode"), Column("g", "G", fmt.number, "most layers of a piece"),
        Column("num_models", "Models", fmt.number, "that were measured"),
        Column("geometric_mean", "Geometric mean", fmt.number, "of constructed / measured"),
        Column("mean_abs_error_frac", "Mean |error|", fmt.share),
        Column("worst_error_frac", "Worst", signed_share), Column("worst_case", "of", unbroken=True),
    ]  # fmt: skip
    return table(worded(errors), "Errors over all measured models", columns)


def _saved(run: Run) -> list[Block]:
    rows = record_tables.time_saved(run)
    if rows.empty:
        return []
    columns = [
        Column("num_models", "Models", fmt.number, "that have the times of all their bricks"),
        Column("models_s", "Each model once", fmt.seconds, "sum of their pieces"),
        Column("suite_s", "Each brick once", fmt.seconds, "of these models, as far as it was timed"),
        Column("speedup", "Speedup", fmt.ratio, "at the same number of repeats"),
        Column("speedup_with_set_up", "with set-up", fmt.ratio,
               "inputs, weights and untimed calls of all bricks of the suite counted",
               lambda row: row.reason),
    ]  # fmt: skip
    caption = "Speedup of timing bricks in place of models"
    note = " ".join(predicted_words(row) for row in fmt.rows(record_tables.predicted_times(run)))
    return [Block(title="Benchmarking time saved", table=table(rows, caption, columns), note=note)]


def _latencies(run: Run) -> Block:
    rows = normalized_latency(run)
    columns = [
        CASE, STRATEGY, Column("phase", "Phase", meaning="all: the whole iteration"),
        Column("latency_s", "Latency", fmt.seconds, "", _reason),
        Column("low_s", "95 % from", fmt.seconds, "", _no_interval),
        Column("high_s", "95 % to", fmt.seconds, "", _no_interval),
        Column("measured_s", "Measured", fmt.seconds, "median iteration of the model itself", _no_error),
        Column("error_frac", "Error", signed_share, "constructed / measured − 1", _no_error),
    ]  # fmt: skip
    return Block(title="Every strategy", table=table(worded(rows), "Latency of each model by strategy", columns))


def _by_layers(run: Run) -> list[Block]:
    rows = record_tables.time_by_layers(run)
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
        Column("time_s", "Time", fmt.seconds, "of all of them"),
        share_column("share_frac", "Share", "of the plain sum"),
    ]  # fmt: skip
    shown, note = top(rows, _NUM_TYPES)
    few = f"Drawn are the {_NUM_BARS} longest of {len(sums)} models." if len(sums) > _NUM_BARS else ""
    return [Block(
        title="By layer type", figures=[figures.by_layers(drawn)], legend=legend_of_types(drawn), note=few,
        table=table(shown, "Constructed latency by layer type", columns, note),
    )]  # fmt: skip


def _memory(run: Run) -> list[Block]:
    rows = record_tables.model_memory(run)
    if rows["peak_bytes"].isna().all():
        return []
    parts = [name for name in rows.columns if name not in ("case", "peak_bytes", "reason") and rows[name].notna().any()]
    columns = [
        CASE, Column("peak_bytes", "Peak", fmt.num_bytes, "most held at once, modelled", lambda row: row.reason),
        *(Column(name, name.removesuffix("_bytes").replace("_", " ").capitalize(), fmt.num_bytes,
                 reason=lambda row: row.reason or "not told") for name in parts),
    ]  # fmt: skip
    return [Block(title="Memory", table=table(rows, "Constructed memory of each model", columns),
                  note="Modelled from what the bricks were measured to hold.")]  # fmt: skip


def _why(run: Run) -> list[Block]:
    """Why models have no latency, none that is corrected, or could not be run themselves."""
    rows = record_tables.model_summary(run)
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


def cards(run: Run) -> tuple[list[Card], Legend, Table]:
    """A card a model, the longest of them, the colours of its bar, and all models as a table."""
    rows = record_tables.model_summary(run)
    parts = record_tables.time_by_layers(run).groupby(["case", "operator_type"], sort=False, as_index=False)
    kinds = parts[["time_s", "share_frac"]].sum()
    longest = rows.sort_values("latency_s", ascending=False, kind="stable", na_position="first").head(NUM_CARDS)
    shown = [*_whole_cards(run), *(_card(row, kinds[kinds["case"] == row.case]) for row in fmt.rows(longest))]
    note = f"Of {len(rows)} models the {NUM_CARDS} longest have a card." if len(rows) > NUM_CARDS else ""
    return shown, legend_of_types(kinds[kinds["case"].isin(longest["case"])]), headlines(rows, note=note)


def _whole_cards(run: Run) -> list[Card]:
    """How right all constructions together are, a card a mode; none where fewer than two models were measured."""
    errors = latency_errors(normalized_latency(run)).query("phase == 'all' and num_models > 1")
    rank = errors["strategy"].map(list(_COLORS).index)
    best = errors.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates("mode")
    saved = [("time saved", fmt.ratio(row.speedup)) for row in fmt.rows(record_tables.time_saved(run))]
    return [
        Card(
            f"{row.num_models} measured models · {row.mode} · {WORDS[row.strategy]}", several=True,
            headline=(fmt.share(row.mean_abs_error_frac), "mean |error|"),
            details=[f"farthest: {row.worst_case}"],
            numbers=[("geometric mean", fmt.number(row.geometric_mean)), ("worst", signed_share(row.worst_error_frac)),
                     *saved],
        ) for row in fmt.rows(best)
    ]  # fmt: skip


def _card(row: Any, parts: pd.DataFrame) -> Card:
    if pd.isna(row.latency_s):
        return Card(row.case, failure=failure_of(row.status, row.reason) or ("nothing", str(row.reason)))
    plain = [] if row.strategy != "corrected" else [f"plain sum {fmt.seconds(row.plain_s)}"]
    return Card(
        row.case, failure=failure_of(row.status, row.reason),
        headline=(fmt.seconds(row.latency_s), WORDS[row.strategy]),
        details=[f"95 % interval {fmt.interval(row.low_s, row.high_s, 'fewer than 6 rounds')}", *plain],
        numbers=[("measured", fmt.seconds(row.measured_s, "not measured")),
                 ("error", signed_share(row.error_frac, "not measured"))],
        bar=[(part.operator_type, float(part.share_frac), palette.operator_type(part.operator_type))
             for part in fmt.rows(parts)],
    )  # fmt: skip


def headlines(rows: pd.DataFrame, *more: Column, note: str = "") -> Table:
    """Every model's latency by the strategy that speaks for it; `more` columns stand after the case."""
    columns = [
        CASE, *more, STATUS, Column("latency_s", "Latency", fmt.seconds, "constructed from bricks", _reason),
        Column("strategy_words", "Strategy", None, "corrected, where the machine was calibrated", _reason,
               unbroken=True),
        Column("plain_s", "Plain sum", fmt.seconds, "of the bricks’ times", _reason),
        Column("measured_s", "Measured", fmt.seconds, "median iteration of the model itself", _no_error),
        Column("error_frac", "Error", signed_share, "constructed / measured − 1", _no_error),
        Column("g", "G", fmt.number, "most layers of a piece", _reason),
    ]  # fmt: skip
    return table(worded(rows), "Constructed latency of each model", columns, note)


def has_measured(run: Run) -> bool:
    """Return whether a record holds constructed models that were run as well."""
    return "construct" in passes_taken(run) and bool(model_summary(run)["normalized"].notna().any())


def side_by_side(runs: Sequence[Run]) -> list[Block]:
    """Normalized latencies of each model in each record, a colour a record; none unless two hold measured models."""
    told = {run.run_id: model_summary(run).dropna(subset=["normalized"]) for run in runs}
    known = [run for run in runs if len(told[run.run_id])]
    if len(known) < 2:
        return []
    labels = _labels(known)
    rows = pd.concat([told[run.run_id].assign(record=labels[run.run_id]) for run in known])
    colors = {label: palette.CASES[number % len(palette.CASES)] for number, label in enumerate(labels.values())}
    errors = pd.concat([latency_errors(normalized_latency(run)).assign(record=labels[run.run_id]) for run in known])
    errors = errors[errors["phase"] == "all"]
    spoken = rows.drop_duplicates("record").set_index("record")["strategy"]
    chosen = errors[errors["strategy"] == errors["record"].map(spoken)].drop_duplicates("record")
    drawn = rows[rows["case"].isin(rows["case"].unique()[:_NUM_DRAWN])]
    means = {row.record: row.geometric_mean for row in fmt.rows(chosen)}
    figure = figures.normalized(drawn, "record", colors, means)
    return [Block(title="Normalized latency of constructed models", figures=[figure], legend=list(colors.items()),
                  table=errors_table(errors, Column("record", "Record", unbroken=True)))]  # fmt: skip


def _labels(runs: Sequence[Run]) -> dict[str, str]:
    """A name for each record: its G where that tells them apart, else its identifier."""
    values = {run.run_id: model_summary(run)["g"].dropna().unique() for run in runs}
    by_g = {run_id: f"G = {g[0]:.0f}" for run_id, g in values.items() if len(g) == 1}
    return by_g if len(set(by_g.values())) == len(runs) else {run.run_id: run.run_id for run in runs}
