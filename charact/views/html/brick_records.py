"""Several records of constructed models beside each other, as of different G: how right each of them is."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.bricks.errors import latency_errors, normalized_latency
from charact.analysis.bricks.record_tables import model_summary
from charact.analysis.passes import passes_taken
from charact.store import Run
from charact.views import format as fmt
from charact.views import palette
from charact.views.html import brick_figures as figures
from charact.views.html.blocks import Block
from charact.views.html.brick_models import errors_table
from charact.views.tables import Column

_NUM_DRAWN = 120


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
