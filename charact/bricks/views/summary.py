"""Bricks as items of the document: times of a suite's run, constructed latencies, and what a suite consists of."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pandas as pd

from charact.bricks.analysis import tables as statistics
from charact.bricks.analysis.construction import Correction
from charact.bricks.suite.composition import Composition
from charact.bricks.suite.suite import Suite
from charact.bricks.views.tables import regression_text
from charact.record.reader import Run
from charact.views.document import Bar, Chapter, Item, Line, Lines, Numbers, Part, failure_line
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table, text_table

_NUM_BRICKS = 10
_NUM_FAILED = 10
_NUM_BARS = 6
_NUM_TYPES = 5
_NUM_SEQUENCES = 10
_STRATEGIES = {"sequential": "plain sum", "paper": "sum of warm times", "critical_path": "longest path",
               "corrected": "corrected"}  # fmt: skip
_BASES = {"corrected": "corrected", "sequential": "plain sums", "paper": "sums by the paper’s method",
          "critical_path": "longest paths"}
_COEFFICIENTS = {"factor": "factor of the plain sum", "module_call_s": "each call of a module",
                 "piece_s": "each segment", "backward_start_s": "each start of a backward pass"}  # fmt: skip


def suite(run: Run) -> list[Item]:
    """Return the summary of a suite's run: each case, its slowest bricks, and failed bricks."""
    suites = []
    for row in fmt.rows(statistics.suite_summary(run)):
        counts = {"failed": row.num_failed, "left to the regression": row.num_left_out}
        of_these = "".join(f", {number:.0f} {what}" for what, number in counts.items() if number)
        suites.append([str(row.case), f"{row.num_bricks:.0f}{of_these}", fmt.number(row.num_layers),
                       fmt.seconds(row.suite_s, row.reason or "none was timed"), fmt.number(row.num_rounds),
                       fmt.duration(row.timed_s), fmt.duration(row.set_up_s)])
    items: list[Item] = [Numbers(text_table(
        ["Suite", "Bricks", "Layers", "Each once", "Rounds", "Timed", "Set-up"], suites), strong=False)]
    bricks = statistics.brick_summary(run)
    columns = [
        Column("brick", "Brick"), Column("layers", "Layers"), Column("time_s", "Time", fmt.seconds),
        share_column("share_frac", "Share", ""),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, reason=lambda row: "none counted"),
    ]  # fmt: skip
    for case, rows in bricks.dropna(subset=["time_s"]).groupby("case", sort=False):
        slowest = table(rows.drop(columns="case").head(_NUM_BRICKS), "", columns)
        items.append(Chapter(f"slowest bricks of {case}", [
            Lines([slowest, *_more_in_report(len(rows) - _NUM_BRICKS)])]))
    failed = bricks[statistics.has_failed(bricks)]
    items += [failure_line(f"{row.brick} {row.layers}", row.status, fmt.failure(row.status, row.reason))
              for row in fmt.rows(failed.head(_NUM_FAILED))]
    return [*items, *_more_in_report(len(failed) - _NUM_FAILED)]


def _more_in_report(number: int) -> list[Line]:
    return _more(number, "more: see the report or charact export")


def _more(number: int, what: str) -> list[Line]:
    return [Line((f"{number:,} {what}", "dim"))] if number > 0 else []


def constructed(run: Run) -> list[Item]:
    """Return the summary of constructed models: latencies, errors, time saved, and shares by layer type."""
    models = statistics.model_summary(run)
    latencies = statistics.normalized_latency(run).query("phase == 'all'")
    is_verified = bool(models["measured_s"].notna().any())
    strategies = [name for name in _STRATEGIES if name in set(latencies.dropna(subset=["latency_s"])["strategy"])]
    by_case = {(row.case, row.strategy): fmt.seconds(row.latency_s, row.reason) for row in fmt.rows(latencies)}
    rows = [[str(row.case),
             *(by_case.get((row.case, name), fmt.missing("not constructed")) for name in strategies),
             fmt.interval(row.low_s, row.high_s, "fewer than 6 rounds"),
             *([fmt.seconds(row.measured_s, "not measured"), _error(row.error_frac)] if is_verified else [])]
            for row in fmt.rows(models[models["latency_s"].notna()])]
    titles = ["Model", *(_STRATEGIES[name].capitalize() for name in strategies), "95 % interval",
              *(["Measured", "Error"] if is_verified else [])]
    items: list[Item] = [Numbers(text_table(titles, rows), strong=False)] if rows else []
    items += [Line((f"{_STRATEGIES[row.strategy]}: {fmt.missing(row.reason)}", "dim"))
              for row in fmt.rows(_without_latency(latencies, strategies))]
    items += _errors(statistics.latency_errors(latencies))
    items += [Line((regression_text(row), "dim")) for row in fmt.rows(statistics.predicted_times(run))]
    items += [*_saved(run), *_bars(statistics.time_by_layers(run))]
    return items + [failure_line(str(row.case), "not constructed", str(row.reason))
                    for row in fmt.rows(models[models["latency_s"].isna()])]


def _error(error_frac: float) -> str:
    return fmt.missing("not measured") if pd.isna(error_frac) else \
        f"{error_frac:+.1%}".replace("%", " %").replace("-", "−")


def _without_latency(latencies: pd.DataFrame, strategies: Collection[str]) -> pd.DataFrame:
    """Return a row for each strategy and reason where no model has a latency by this strategy."""
    rows = latencies[~latencies["strategy"].isin(list(strategies))]
    known = latencies.loc[latencies["latency_s"].notna(), "case"]
    return rows[rows["case"].isin(known)].drop_duplicates(["strategy", "reason"])


def _errors(rows: pd.DataFrame) -> list[Item]:
    """Return the table of errors over the measured models."""
    if rows.empty:
        return []
    texts = [[f"{_STRATEGIES[row.strategy]}, {row.mode}", f"{row.num_models}", f"{row.geometric_mean:.3f}",
              fmt.share(row.mean_abs_error_frac), _error(row.worst_error_frac)] for row in fmt.rows(rows)]
    worst = rows.drop_duplicates("strategy")["worst_case"].drop_duplicates()
    return [Line(), text_table(["Constructed ÷ measured", "Models", "Geometric mean", "Mean |error|", "Worst"], texts),
            Line((f"worst: {', '.join(map(str, worst))}", "dim"))]


def _saved(run: Run) -> list[Item]:
    lines = []
    for row in fmt.rows(statistics.time_saved(run)):
        models = "the model" if row.num_models == 1 else f"the {row.num_models:.0f} models"
        lines.append(Line(
            "benchmarking time: bricks take ", (fmt.seconds(row.suite_s), "strong"),
            f" once, {models} {fmt.seconds(row.models_s)}: ", (fmt.ratio(row.speedup), "strong"),
            f", with the whole suite's set-up {fmt.ratio(row.speedup_with_set_up, row.reason)}"))
    return [Line(), *lines] if lines else []


def _bars(layers: pd.DataFrame) -> list[Item]:
    """Return a bar of time by layer type for each of the first models."""
    items: list[Item] = []
    cases = list(layers["case"].unique())
    for case in cases[:_NUM_BARS]:
        times = layers[layers["case"] == case].groupby("operator_type")["time_s"].sum().sort_values(ascending=False)
        top, rest = times.iloc[:_NUM_TYPES], times.iloc[_NUM_TYPES:]
        parts = [Part(str(name), time_s / times.sum(), palette.operator_type(str(name)), fmt.seconds(time_s))
                 for name, time_s in top.items()]
        if len(rest):
            parts.append(Part(f"{len(rest)} more", rest.sum() / times.sum(), palette.REMAINDER,
                              fmt.seconds(rest.sum())))  # fmt: skip
        items += [Line(), Bar(f"{case} by layer type (plain sum)", parts)]
    return [*items, *_more(len(cases) - _NUM_BARS, "more models: see the report")]


def machines(latencies: pd.DataFrame) -> Lines:
    """Return a table of models by machines, from `latency_by_machine`, and reasons for missing latencies below it."""
    names = list(dict.fromkeys(latencies["machine"]))
    keys = ["workload", "variant", "input_size", "batch_size", "mode", "precision"]
    num_variants = latencies.groupby("workload")["variant"].nunique().to_dict()
    rows: list[list[str]] = []
    reasons: list[Line] = []
    for key, of_model in latencies.groupby(keys, sort=False, dropna=False):
        facts = dict(zip(keys, key, strict=True))
        if num_variants[facts["workload"]] > 1:
            facts["workload"] = f"{facts['workload']}.{facts['variant']}"
        model = configuration(facts)
        rows.append([model, *(_on_machine(fmt.rows(of_model[of_model["machine"] == name])) for name in names)])
        reasons += [Line((f"{model} on {row.machine}: {fmt.missing(row.reason)}", "dim"))
                    for row in fmt.rows(of_model[of_model["latency_s"].isna()])]
    bases = [_BASES[name] for name in dict.fromkeys(latencies["strategy"].dropna())]
    title = Line(("latency by machine", "strong"), (f"  {', '.join(bases)}", "dim"))
    return Lines([Line(), title, Numbers(text_table(["Model", *map(str, names)], rows), strong=False), *reasons])


def _on_machine(rows: Iterable[Any]) -> str:
    """Return a model's latency on a machine; several, in the order of the records, if there are several."""
    latencies = [fmt.seconds(row.latency_s)
                 + ("" if pd.isna(row.measured_s) else f" (measured {fmt.seconds(row.measured_s)})") for row in rows]
    return ", ".join(latencies) or fmt.missing("not constructed there")


def configuration(facts: dict[str, Any]) -> str:
    """Return a model's configuration as text, without the device: resnet18 224 b8 infer fp32."""
    words = [facts["workload"], facts["input_size"],
             None if pd.isna(facts["batch_size"]) else f"b{facts['batch_size']:.0f}", facts["mode"], facts["precision"]]
    return " ".join(f"{word:.0f}" if isinstance(word, float) else str(word) for word in words if pd.notna(word))


def correction(case: str, models: Sequence[str], sums_s: Sequence[float], measured_s: Sequence[float],
               learned: Correction) -> Lines:
    """Return the result of a calibration: plain sums against measured times, and the coefficients."""
    sums = [[model, fmt.seconds(sum_s), fmt.seconds(median_s), f"{sum_s / median_s:.3f}"]
            for model, sum_s, median_s in zip(models, sums_s, measured_s, strict=True)]
    coefficients = []
    for name, label in _COEFFICIENTS.items():
        value, reason = getattr(learned, name), learned.reasons.get(name)
        text = f"{value:.4f}" if name == "factor" else fmt.change(value)
        coefficients.append([label, f"{text} ({reason})" if reason else text])
    return Lines([
        Line((case, "strong")),
        Numbers(text_table(["Model", "Plain sum", "Measured", "Sum ÷ measured"], sums), strong=False), Line(),
        text_table(["Correction", "Learned"], coefficients), Line(),
        Line("mean |error|: plain sum ", fmt.share(learned.plain_error_frac), ", corrected ",
             (fmt.share(learned.error_frac), "strong"), " in leave-one-out cross-validation, worst ",
             fmt.share(learned.worst_error_frac)),
        Line("Saved for this machine: charact bricks construct uses it."), Line(),
    ])  # fmt: skip


def generated(cases: Collection[str], compositions: Sequence[Composition], suite: Suite) -> Lines:
    """Return the tables of a suite: segments of its models, and the share of distinct ones.

    Args:
        cases: cases of the models to show.
        compositions: all models of the suite.
        suite: the current suite.
    """
    segments = statistics.suite_pieces(compositions, suite)
    reuse, sequences = statistics.model_reuse(segments), statistics.layer_reuse(segments)
    models = [[str(row.case), f"{row.num_layers:,}", f"{row.num_pieces:,}", _distinct(row), fmt.share(row.shared_frac)]
              for row in fmt.rows(reuse[reuse["case"].isin(list(cases))])]
    together = [
        Line(f"{len(compositions)} models of {row.num_layers:,} layers in {row.num_pieces:,} segments: ",
             (f"{row.num_bricks:,} distinct, {fmt.share(row.unique_frac)}", "strong"))
        for row in fmt.rows(reuse[reuse["case"].isna()])]
    types = [[str(row.layers), f"{row.num_pieces:,}", _distinct(row)]
             for row in fmt.rows(sequences.head(_NUM_SEQUENCES))]
    return Lines([
        Numbers(text_table(["Model", "Layers", "Segments", "Distinct", "Shared with others"], models), strong=False),
        *together, Line(), text_table(["Layers", "Segments", "Distinct"], types),
        *_more(len(sequences) - _NUM_SEQUENCES, "more sequences of layers"),
    ])  # fmt: skip


def _distinct(row: Any) -> str:
    return f"{row.num_bricks:,}  {fmt.share(row.unique_frac)}"


def frequent(compositions: Sequence[Composition], suite: Suite) -> Lines:
    """Return the bricks that occur in models most often."""
    reuse = statistics.brick_reuse(statistics.suite_pieces(compositions, suite))
    rows = [[str(row.brick), str(row.layers), f"{row.num_uses:,}", f"{row.num_models:,}", f"{row.most_in_one:,}"]
            for row in fmt.rows(reuse.head(_NUM_BRICKS))]
    return Lines([
        Line(), text_table(["Brick", "Layers", "Uses", "Models", "Most in one model"], rows, num_names=2),
        *_more(len(reuse) - _NUM_BRICKS, "more bricks"),
        *_more(len(suite.bricks) - len(reuse), "more are updates, sums of gradients, and decoys"),
    ])
