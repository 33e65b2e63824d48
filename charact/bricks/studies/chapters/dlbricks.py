"""DLBricks: unique sequences of layers, and latencies of models that are constructed from them."""

import shlex
from collections.abc import Iterable, Sequence
from itertools import cycle

import pandas as pd

from charact.bricks.analysis.dlbricks import (
    constructions_by_g,
    latencies_by_machine,
    normalized_by_g,
    path_latencies,
    repeated_layers,
    speedup_slope,
)
from charact.bricks.analysis.tables import normalized_latency
from charact.bricks.studies.installed_models import installed_groups
from charact.bricks.views.figures import (
    DEVIATIONS,
    against_measured,
    counts_by_name,
    grouped_bars,
    latencies,
    normalized_heatmap,
)
from charact.bricks.views.summary import model_names
from charact.bricks.views.tables import BRICKS, COLORS, LABELS, PIECES
from charact.record.reader import Run
from charact.studies.claims import Value, claims_block
from charact.studies.published import claims_of
from charact.studies.study import Study
from charact.views.charts import DASHED, Axis, Rule
from charact.views.document import Block, Body
from charact.views.figures.bars import bars_by_name, short_names
from charact.views.html.elements.blocks import CASE
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table

_SUM, _PATH = "in sequence", "critical path"
_PUBLISHED, _ALL, _MEAN = "published, ICPE 2020", "all models", "geometric mean"
_PUBLISHED_UNIQUE_FRAC, _PUBLISHED_SPEEDUP = 1529 / 10815, 4.4


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter: the publication's figures in its order, and the latencies at the smallest G."""
    by_g = constructions_by_g(runs)
    blocks = [_claims(by_g), _against_g(by_g)]
    if len(by_g):
        colors = dict(zip(by_g["machine"].unique(), cycle(palette.CASES), strict=False))
        first = runs[by_g["run"].iloc[0]]
        blocks += [_paths(first, by_g["g"].iloc[0]), _repeats(first), _machines(runs, colors), *_normalized(runs),
                   _speedups(by_g, colors), *_scatter(first, by_g["g"].iloc[0])]
    return Body(blocks=blocks)


def _claims(by_g: pd.DataFrame) -> Block:
    """Return the claims' table from the rows of the first machine."""
    first = by_g[by_g["g"] == 1].head(1)
    columns = {"unique": "unique_frac", "accuracy": "geometric_mean", "speedup": "speedup"}
    values = {name: Value(float(first[column].iloc[0])) for name, column in columns.items()
              if len(first) and first[column].notna().all()}
    slope = speedup_slope(by_g)
    return claims_block(claims_of("dlbricks"), values | ({} if slope is None else {"falling": Value(slope)}))


def _paths(run: Run, g: int) -> Block:
    """Return the latencies in sequence and along the critical path, over the measured ones."""
    def ratio(name: str, title: str, meaning: str) -> Column:
        return Column(name, title, fmt.ratio, meaning, lambda row: row.reason)

    rows, title = path_latencies(run), f"Layers in sequence and along the critical path, G = {g}"
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


def _machines(runs: Sequence[Run], colors: dict[str, str]) -> Block:
    """Return the latency of each model by machine."""
    rows, title = latencies_by_machine(runs), "Latency of each model by machine"
    # Hyphens, as in cases: a figure leaves out the parts that all names share.
    rows = rows.assign(name=[name.replace(" ", "-") for name in model_names(rows)])
    hollow = "Rings are constructed latencies of models that did not run there." if (
        rows["source"] == "constructed").any() else ""
    return Block(
        title=title, legend=list(colors.items()), note=hollow,
        figures=[latencies(title, rows, colors)] if rows["latency_s"].notna().any() else [],
        table=table(rows, title, [
            Column("name", "Model", unbroken=True), Column("machine", "Machine"),
            Column("latency_s", "Latency", fmt.seconds, "median iteration", lambda row: row.reason),
            Column("source", "Source", reason=lambda row: row.reason)]))


def _normalized(runs: Sequence[Run]) -> list[Block]:
    """Return constructed over measured latency by model and G with the geometric means, a block per machine."""
    rows = normalized_by_g(runs)
    cases = rows["case"].dropna().unique()
    rows = rows.assign(name=rows["case"].map(dict(zip(cases, short_names(cases), strict=True))).fillna(_MEAN))
    blocks = []
    for machine, on_machine in rows.groupby("machine", sort=False):
        title = "Normalized latency by model and G" + (f": {machine}" if rows["machine"].nunique() > 1 else "")
        charts = [normalized_heatmap(title, on_machine)] if on_machine["normalized"].notna().any() else []
        blocks.append(Block(
            title=title, figures=charts, legend=list(DEVIATIONS.items()), note=_NORMALIZED_NOTE,
            table=table(on_machine, title, [
                Column("name", "Model", unbroken=True), Column("g", "G", fmt.number),
                Column("normalized", "Constructed / measured", fmt.ratio, "plain sum / median iteration",
                       lambda row: row.reason)])))
    return blocks


def _speedups(by_g: pd.DataFrame, colors: dict[str, str]) -> Block:
    """Return the speedup by G and machine next to the published one."""
    title = "Speedup by G and machine"
    rows = by_g.assign(name=[f"G = {g}" for g in by_g["g"]], kind=by_g["machine"], value=by_g["speedup"])
    axis = Axis("each model once / each unique brick once", low=0, high=1.05 * max(_PUBLISHED_SPEEDUP,
                                                                                    rows["value"].max()))
    figure = grouped_bars(title, rows.sort_values("g", kind="stable"), colors, axis,
                          [Rule(_PUBLISHED_SPEEDUP, style=DASHED, axis="x")])
    return Block(title=title, figures=[figure] if rows["value"].notna().any() else [], legend=list(colors.items()),
                 note=f"Dashed: × {_PUBLISHED_SPEEDUP}, published for G = 1. The table against G has the numbers.")


def _scatter(run: Run, g: int) -> list[Block]:
    """Return constructed against measured latencies of one record; no block if no model was measured."""
    rows = normalized_latency(run).query("phase == 'all' and strategy != 'critical_path'").dropna(subset=["normalized"])
    if rows.empty:
        return []
    legend = [(LABELS[name], color) for name, color in COLORS.items() if name in set(rows["strategy"])]
    return [Block(title=f"Latency, constructed against measured, G = {g}", legend=legend,
                  figures=[against_measured(rows, COLORS)],
                  note="The band is ± 10 %; labels name the largest outliers.")]


def _against_g(by_g: pd.DataFrame) -> Block:
    """Return the table of reuse, accuracy and speedup by G; it is visible, unlike tables of figures."""
    published = {"name": _PUBLISHED, "g": 1, "num_models": 50, "unique_frac": _PUBLISHED_UNIQUE_FRAC,
                 "geometric_mean": 0.918, "mean_abs_error_frac": None, "speedup": _PUBLISHED_SPEEDUP}
    here = "here" if by_g["machine"].nunique() <= 1 else by_g["machine"]
    rows = pd.DataFrame([published, *by_g.assign(name=here).to_dict("records")])
    rows = rows.astype(dict.fromkeys(["unique_frac", "geometric_mean", "mean_abs_error_frac", "speedup"], "float64"))
    title = "Unique bricks, accuracy and speedup against G"
    return Block(title=title, note=_NOTE, table=table(rows, title, [
        Column("name", "Source"),
        Column("g", "G", fmt.number, "maximum number of layers of a brick"),
        Column("num_models", "Models", fmt.number),
        share_column("unique_frac", "Unique", "unique bricks / all segments"),
        Column("geometric_mean", "Constructed / measured", fmt.ratio, "geometric mean over the models",
               lambda row: "no model was measured"),
        Column("mean_abs_error_frac", "Mean error", fmt.share, "mean of |constructed / measured − 1|",
               lambda row: "not published" if row.name == _PUBLISHED else "no model was measured"),
        Column("speedup", "Speedup", fmt.ratio, "each model once / each brick once", lambda row: "not timed")]))


_NOTE = ("Published: 50 MXNet models on CPUs; the geometric mean is that of c5.2xlarge, where models lie between 82.9 "
         "and 98.1 %. Errors within 5 % are published for G of 3, 5, 9 and 10, not for the 4.4-fold speedup.")
_NORMALIZED_NOTE = ("Normalized: plain sum of the bricks / measured latency. G is the maximum number of layers of a "
                    "brick. White is 1; the color is full at a deviation of 25 %.")


_QUICK = "resnet18 resnet34 vgg11 vgg13 googlenet --input-sizes 64"
_FULL = ("vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn resnet18 resnet34 resnet50 resnet101 resnet152 "
         "resnet50v2 resnet152v2 googlenet xception model_a")
_QUICK_SIZES, _FULL_SIZES = (1, 2, 4), range(1, 11)
"""Values of G."""


def _generate(models: str, sizes: Iterable[int]) -> list[str]:
    """Return the commands that add models to the suite of each G."""
    return [f"bricks generate {models} --batch-sizes 1 -g {g} --out {{directory}}/suite-g{g}" for g in sizes]


def _full_commands() -> tuple[str, ...]:
    """Return the commands of the full study: charact's own models first, then those of other packages."""
    installed = [f"{' '.join(group.targets)} --input-spec {shlex.quote(group.input_spec)} "
                 f"--input-sizes {group.input_size}" for group in installed_groups()]
    return tuple(command for models in (_FULL, *installed) for command in _generate(models, _FULL_SIZES))


_CONSTRUCT = "bricks construct all {run} --verify --max-seconds 3"
_CACHE = "Bricks run with the cache state of a model, not repeated back to back."
_LAYERS = "A layer is an operator that PyTorch calls, views and copies included, not a layer of MXNet."

STUDY = Study(
    "dlbricks", "DLBricks: models from bricks", "DLBricks: composable benchmark generation to reduce deep learning "
    "benchmarking effort on CPUs (ICPE 2020)", chapter,
    {"quick": ("5 image models of PyTorch at 64×64 pixels, not 50 of MXNet.", _CACHE, _LAYERS),
     "full": ("18 image models of charact and those of transformers and torchvision that are installed, not 50 of "
              "MXNet.", _CACHE, _LAYERS)},
    before={"quick": tuple(_generate(_QUICK, _QUICK_SIZES)), "full": _full_commands()},
    after_each={"quick": _CONSTRUCT, "full": " ".join([_CONSTRUCT, *(
        f"--model {target}" for group in installed_groups() for target in group.targets)])},
    compares_machines=True)
