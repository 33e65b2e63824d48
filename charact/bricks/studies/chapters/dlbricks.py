"""DLBricks: unique sequences of layers, and latencies of models that are constructed from them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from charact.bricks.analysis.dlbricks import path_latencies, repeated_layers
from charact.bricks.analysis.tables import latency_errors, model_reuse, normalized_latency, record_pieces, time_saved
from charact.bricks.views.figures import counts_by_name, grouped_bars
from charact.bricks.views.sections import constructed
from charact.bricks.views.tables import BRICKS, COLORS, PIECES
from charact.record.reader import Run
from charact.studies.claims import Value, claims_block
from charact.studies.published import claims_of
from charact.studies.study import Study
from charact.views.charts import Axis, Rule
from charact.views.document import Block, Body
from charact.views.figures.bars import bars_by_name, short_names
from charact.views.html.elements.blocks import CASE
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table

_SUM, _PATH = "in sequence", "critical path"
_PUBLISHED, _ALL = "published, ICPE 2020", "all models"
_PUBLISHED_UNIQUE_FRAC = 1529 / 10815


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter: bricks against G, accuracy and speedup against G, and each model at the smallest G."""
    built = sorted((run for run in runs if len(run.constructions)), key=lambda run: int(_row(run)["g"]))
    published = {"name": _PUBLISHED, "g": 1, "num_models": 50, "unique_frac": _PUBLISHED_UNIQUE_FRAC,
                 "geometric_mean": 0.918, "mean_abs_error_frac": None, "speedup": 4.4}
    rows = pd.DataFrame([published, *map(_row, built)])
    rows = rows.astype(dict.fromkeys(["unique_frac", "geometric_mean", "mean_abs_error_frac", "speedup"], "float64"))
    # The table is a block of its own: below a figure it would be folded, and the published values with it.
    blocks = [_claims(rows.iloc[1:]),
              Block(title="Unique bricks, accuracy and speedup against G", table=_against_g(rows), note=_NOTE)]
    return Body(blocks=[*blocks, *(block for run in built[:1]
                                   for block in [_paths(run), _repeats(run), *_models(run)])])


def _claims(rows: pd.DataFrame) -> Block:
    """Return the claims' table from the rows of constructions."""
    first = rows[rows["g"] == 1].head(1)
    columns = {"unique": "unique_frac", "accuracy": "geometric_mean", "speedup": "speedup"}
    values = {name: Value(float(first[column].iloc[0])) for name, column in columns.items()
              if len(first) and first[column].notna().all()}
    timed = rows.dropna(subset=["speedup"])
    if timed["g"].nunique() > 1:
        values["falling"] = Value(float(np.polyfit(timed["g"].astype(float), timed["speedup"], 1)[0]))
    return claims_block(claims_of("dlbricks"), values)


def _paths(run: Run) -> Block:
    """Return the latencies in sequence and along the critical path, over the measured ones."""
    def ratio(name: str, title: str, meaning: str) -> Column:
        return Column(name, title, fmt.ratio, meaning, lambda row: row.reason)

    rows, title = path_latencies(run), f"Layers in sequence and along the critical path, G = {_row(run)['g']}"
    drawn = rows.rename(columns={"case": "name", "sum_ratio": _SUM, "path_ratio": _PATH})
    drawn = drawn.melt("name", [_SUM, _PATH], "kind", "value").dropna(subset=["value"])
    colors = {_SUM: COLORS["sequential"], _PATH: COLORS["critical_path"]}
    figure = grouped_bars("Layers in sequence and along the critical path over measured latency", drawn, colors,
                          Axis("constructed / measured latency", low=0, always=1), [Rule(1, axis="x", width=1)])
    return Block(title=title, figures=[figure] if len(drawn) else [], legend=list(colors.items()),
                 note="The critical path is the latency if parallel branches ran at the same time.",
                 table=table(rows, title, [
                     CASE, Column("measured_s", "Measured", fmt.seconds, "median iteration", lambda row: row.reason),
                     Column("sum_s", "In sequence", fmt.seconds, "sum of all layers", lambda row: row.reason),
                     Column("path_s", "Critical path", fmt.seconds, "longest path of layers", lambda row: row.reason),
                     ratio("sum_ratio", "Sequence / measured", "1: the layers explain the whole latency"),
                     ratio("path_ratio", "Path / measured", "below 1: branches run one after the other")]))


def _repeats(run: Run) -> Block:
    """Return the numbers of all and of unique layers by operator type, and the unique share of each model."""
    rows, title = repeated_layers(run), "Repeated layers"
    if rows.empty:
        return Block(title=title, note=f"The figure is {fmt.missing('no run has G = 1: a brick is not one layer')}.")
    types, models = rows.dropna(subset=["operator_type"]), rows[rows["operator_type"].isna()]
    rows = rows.assign(name=rows["operator_type"].fillna(rows["case"]).fillna(_ALL))
    shares = pd.concat([models.assign(name=[*short_names(models["case"].dropna()), _ALL][:len(models)]),
                        pd.DataFrame([{"name": _PUBLISHED, "unique_frac": _PUBLISHED_UNIQUE_FRAC}])])
    # Published and total bars differ in color from those of the models.
    colors = {_PUBLISHED: palette.CASES[0], _ALL: palette.CASES[2]}
    return Block(
        title=title, legend=[("all layers", PIECES), ("unique layers", BRICKS)],
        figures=[counts_by_name("Layers by operator type", types.rename(columns={"operator_type": "name"}),
                                {"num_pieces": PIECES, "num_bricks": BRICKS}),
                 bars_by_name("Share of unique layers of each model",
                              shares.assign(unique_percent=100 * shares["unique_frac"]), "unique_percent", "%",
                              "unique layers / all layers", lambda row: colors.get(row.name, palette.CASES[1]))],
        table=table(rows, "Repeated layers by operator type and by model", [
            Column("name", "Operator type or model", unbroken=True), Column("num_pieces", "Layers", fmt.number),
            Column("num_bricks", "Unique layers", fmt.number, "that differ in sizes or parameters"),
            share_column("unique_frac", "Unique", "unique layers / layers")]))


def _models(run: Run) -> list[Block]:
    """Return the figures of each model's latency."""
    found = [block for block in constructed.models(run).blocks if block.figures]
    return [replace(block, title=block.title or f"Latency, constructed against measured, G = {_row(run)['g']}")
            for block in found]


def _against_g(rows: pd.DataFrame) -> Table:
    return table(rows, "Unique bricks, accuracy and speedup against G", [
        Column("name", "Source", unbroken=True),
        Column("g", "G", fmt.number, "maximum number of layers of a brick"),
        Column("num_models", "Models", fmt.number),
        share_column("unique_frac", "Unique", "different / all segments"),
        Column("geometric_mean", "Constructed / measured", fmt.ratio, "geometric mean over the models",
               lambda row: "no model was measured"),
        Column("mean_abs_error_frac", "Mean error", fmt.share, "mean of |constructed / measured − 1|",
               lambda row: "not published" if row.name == _PUBLISHED else "no model was measured"),
        Column("speedup", "Speedup", fmt.ratio, "each model once / each brick once", lambda row: "not timed")])


_NOTE = ("Published: 50 MXNet models on CPUs; the geometric mean is that of c5.2xlarge, where models lie between 82.9 "
         "and 98.1 %. Errors within 5 % are published for G of 3, 5, 9 and 10, not for the 4.4-fold speedup.")


def _row(run: Run) -> dict[str, Any]:
    """Return the numbers of a construction that the study plots against G."""
    latencies = normalized_latency(run).query("phase == 'all'")
    errors = latency_errors(latencies.dropna(subset=["normalized"])).query("strategy == 'sequential'")
    reuse, saved, g = model_reuse(record_pieces(run)), time_saved(run), int(latencies["g"].max())
    return {"name": f"here, G = {g}", "g": g, "num_models": latencies["case"].nunique(),
            "unique_frac": reuse["unique_frac"].iloc[-1] if len(reuse) else None,
            "geometric_mean": errors["geometric_mean"].iloc[0] if len(errors) else None,
            "mean_abs_error_frac": errors["mean_abs_error_frac"].iloc[0] if len(errors) else None,
            "speedup": saved["speedup"].iloc[0] if len(saved) else None}


_QUICK = "resnet18 resnet34 vgg11 vgg13 googlenet --input-sizes 64 --batch-sizes 1"
_FULL = ("vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn resnet18 resnet34 resnet50 resnet101 resnet152 "
         "resnet50v2 resnet152v2 googlenet xception model_a --batch-sizes 1")

STUDY = Study(
    "dlbricks", "DLBricks: models from bricks", "DLBricks: composable benchmark generation to reduce deep learning "
    "benchmarking effort on CPUs (ICPE 2020)", chapter,
    {"quick": ("5 image models of PyTorch at 64×64 pixels, not 50 of MXNet.",
               "Bricks run with the cache state of a model, not repeated back to back."),
     "full": ("The image models that are installed, not 50 of MXNet.",
              "Bricks run with the cache state of a model, not repeated back to back.")},
    before={"quick": tuple(f"bricks generate {_QUICK} -g {g} --out {{directory}}/suite-g{g}" for g in (1, 2, 4)),
            "full": tuple(f"bricks generate {_FULL} -g {g} --out {{directory}}/suite-g{g}"
                          for g in (1, 2, 3, 4, 5, 10))},
    after_each="bricks construct all {run} --verify --max-seconds 3")
