"""What the commands of bricks print: segments of models, a calibration, and latencies by machine."""

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from charact.bricks.analysis import tables
from charact.bricks.analysis.construction import Correction
from charact.bricks.suite.composition import Composition
from charact.bricks.suite.suite import Suite
from charact.bricks.views.tables import LAYERS, SEGMENTS
from charact.views.document import Item, Line, Lines, Numbers
from charact.views.html.elements.blocks import CASE
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, text_table

_COEFFICIENTS = {"factor": "factor of the plain sum", "module_call_s": "each call of a module",
                 "piece_s": "each segment", "backward_start_s": "each start of a backward pass"}  # fmt: skip
_NUM_ROWS = 10
_BASES = {"corrected": "corrected", "sequential": "plain sums", "critical_path": "longest paths"}


def correction(case: str, models: Sequence[str], sums_s: Sequence[float], measured_s: Sequence[float],
               learned: Correction) -> Item:
    """Return the result of a calibration: plain sums against measured times, and the coefficients."""
    rows = pd.DataFrame({"case": models, "sum_s": sums_s, "measured_s": measured_s})
    rows["ratio"] = [f"{ratio:.3f}" for ratio in rows["sum_s"] / rows["measured_s"]]
    times = [CASE, Column("sum_s", "plain sum", fmt.seconds), Column("measured_s", "measured", fmt.seconds),
             Column("ratio", "sum ÷ measured")]
    coefficients = []
    for name, label in _COEFFICIENTS.items():
        value, reason = getattr(learned, name), learned.reasons.get(name)
        text = f"{value:.4f}" if name == "factor" else fmt.change(value)
        coefficients.append([label, f"{text} ({reason})" if reason else text])
    return Lines([
        Line((case, "strong")), Numbers(table(rows, "", times), strong=False), Line(),
        text_table(["correction", "learned"], coefficients),
        Line(), Line("mean |error|: plain sum ", fmt.share(learned.plain_error_frac), ", corrected ",
                     (fmt.share(learned.error_frac), "strong"), " in leave-one-out cross-validation, worst ",
                     fmt.share(learned.worst_error_frac)),
        Line("Saved for this machine: charact bricks construct uses it."), Line()])


def generated(cases: Collection[str], compositions: Sequence[Composition], suite: Suite) -> Item:
    """Return the segments of a suite's models, and the share of distinct ones.

    Args:
        cases: cases of the models to show.
        compositions: all models of the suite.
        suite: the current suite.
    """
    pieces = tables.suite_pieces(compositions, suite)
    models, layers = tables.model_reuse(pieces), tables.layer_reuse(pieces)
    by_model = table(models[models["case"].isin(list(cases))], "", [
        CASE, Column("num_layers", "Layers", fmt.number), *SEGMENTS, share_column("shared_frac", "Shared", "")])
    together = [
        Line(f"{len(compositions)} models of {row.num_layers:,} layers in {row.num_pieces:,} segments: ",
             (f"{row.num_bricks:,} distinct, {fmt.share(row.unique_frac)}", "strong"))
        for row in fmt.rows(models[models["case"].isna()])]
    return Lines([Numbers(by_model, strong=False), *together, Line(),
                  Numbers(table(layers.head(_NUM_ROWS), "", [LAYERS, *SEGMENTS]), strong=False),
                  *_more(len(layers) - _NUM_ROWS, "more sequences of layers")])


def frequent(compositions: Sequence[Composition], suite: Suite) -> Item:
    """Return the bricks that occur in models most often."""
    rows = tables.brick_reuse(tables.suite_pieces(compositions, suite))
    bricks = table(rows.head(_NUM_ROWS), "", [
        Column("brick", "Brick"), LAYERS, Column("num_uses", "Uses", fmt.number),
        Column("num_models", "Models", fmt.number), Column("most_in_one", "Most in one model", fmt.number)])
    return Lines([Line(), bricks, *_more(len(rows) - _NUM_ROWS, "more bricks"),
                  *_more(len(suite.bricks) - len(rows), "more are updates, sums of gradients, and decoys")])


def _more(number: int, what: str) -> list[Line]:
    return [Line((f"{number:,} {what}", "dim"))] if number > 0 else []


def machines(latencies: pd.DataFrame) -> Item:
    """Return a table of models by machines, from `latency_by_machine`, and reasons for missing latencies below it."""
    names = list(dict.fromkeys(latencies["machine"]))
    keys = ["workload", "variant", "input_size", "batch_size", "mode", "precision"]
    cells, reasons = [], []
    for _, rows in latencies.assign(model=model_names(latencies)).groupby(keys, sort=False, dropna=False):
        model = str(rows["model"].iloc[0])
        on_machine = [fmt.rows(rows[rows["machine"] == name]) for name in names]
        # Several records of one machine are listed in their order.
        cells.append([model, *(", ".join(map(_latency, some)) or fmt.missing("not constructed there")
                               for some in on_machine)])
        reasons += [Line((f"{model} on {row.machine}: {fmt.missing(row.reason)}", "dim"))
                    for row in fmt.rows(rows[rows["latency_s"].isna()])]
    bases = [_BASES[name] for name in dict.fromkeys(latencies["strategy"].dropna())]
    return Lines([Line(), Line(("latency by machine", "strong"), (f"  {', '.join(bases)}", "dim")),
                  Numbers(text_table(["model", *map(str, names)], cells)), *reasons])


def _latency(row: Any) -> str:
    measured = "" if pd.isna(row.measured_s) else f" (measured {fmt.seconds(row.measured_s)})"
    return fmt.seconds(row.latency_s) + measured


def model_names(rows: pd.DataFrame) -> list[str]:
    """Return the configuration of each row as text; a workload of which several variants occur has its variant."""
    num_variants = rows.groupby("workload")["variant"].nunique()
    names = rows["workload"].where(rows["workload"].map(num_variants) < 2, rows["workload"] + "." + rows["variant"])
    return [configuration(row._asdict()) for row in fmt.rows(rows.assign(workload=names))]


def configuration(facts: dict[str, Any]) -> str:
    """Return a model's configuration as text, without the device: resnet18 224 b8 infer fp32."""
    words = [facts["workload"], facts["input_size"],
             None if pd.isna(facts["batch_size"]) else f"b{facts['batch_size']:.0f}", facts["mode"], facts["precision"]]
    return " ".join(f"{word:.0f}" if isinstance(word, float) else str(word) for word in words if pd.notna(word))
