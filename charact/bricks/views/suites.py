"""Terminal tables of suites: segments of models, and calibration."""

from collections.abc import Collection, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from charact.bricks.analysis import tables as statistics
from charact.bricks.analysis.construction import Correction
from charact.bricks.suite.composition import Composition
from charact.bricks.suite.suite import Suite
from charact.views.tables import format as fmt
from charact.views.terminal.renderer import NamedTable, plain_table

_COEFFICIENTS = {"factor": "factor of the plain sum", "module_call_s": "each call of a module",
                 "piece_s": "each segment", "backward_start_s": "each start of a backward pass"}  # fmt: skip
_NUM_TYPES = 10
_NUM_BRICKS = 10


def correction(case: str, models: Sequence[str], sums_s: Sequence[float], measured_s: Sequence[float],
               learned: Correction) -> RenderableType:
    """Return the result of a calibration: plain sums against measured times, and the coefficients."""
    table = NamedTable("model", "plain sum", "measured", "sum ÷ measured")
    for model, sum_s, median_s in zip(models, sums_s, measured_s, strict=True):
        table.add_row(Text(model), Text(fmt.seconds(sum_s)), Text(fmt.seconds(median_s)),
                      Text(f"{sum_s / median_s:.3f}"))  # fmt: skip
    coefficients = plain_table("correction", "learned")
    for name, label in _COEFFICIENTS.items():
        value = getattr(learned, name)
        shown = f"{value:.4f}" if name == "factor" else fmt.change(value)
        reason = learned.reasons.get(name)
        coefficients.add_row(Text(label), Text(f"{shown} ({reason})" if reason else shown))
    errors = Text.assemble(
        "mean |error|: plain sum ", fmt.share(learned.plain_error_frac), ", corrected ",
        (fmt.share(learned.error_frac), "bold"), " in leave-one-out cross-validation, worst ",
        fmt.share(learned.worst_error_frac))  # fmt: skip
    return Group(Text(case, style="bold"), table, Text(), coefficients, Text(), errors,
                 Text("Saved for this machine: charact bricks construct uses it."), Text())


def generated(cases: Collection[str], compositions: Sequence[Composition], suite: Suite) -> RenderableType:
    """Return the tables of a suite: segments of its models, and the share of distinct ones.

    Args:
        cases: cases of the models to show.
        compositions: all models of the suite.
        suite: the current suite.
    """
    pieces = statistics.suite_pieces(compositions, suite)
    models = NamedTable("model", "layers", "segments", "distinct", "shared with others")
    rows = statistics.model_reuse(pieces)
    for row in fmt.rows(rows[rows["case"].isin(list(cases))]):
        models.add_row(Text(str(row.case)), Text(f"{row.num_layers:,}"), Text(f"{row.num_pieces:,}"),
                       Text(f"{row.num_bricks:,}  {fmt.share(row.unique_frac)}"), Text(fmt.share(row.shared_frac)))
    types = plain_table("layers", "segments", "distinct")
    found = statistics.layer_reuse(pieces)
    for row in fmt.rows(found.head(_NUM_TYPES)):
        types.add_row(Text(str(row.layers)), Text(f"{row.num_pieces:,}"),
                      Text(f"{row.num_bricks:,}  {fmt.share(row.unique_frac)}"))  # fmt: skip
    together = [
        Text.assemble(f"{len(compositions)} models of {row.num_layers:,} layers in {row.num_pieces:,} segments: ",
                      (f"{row.num_bricks:,} distinct, {fmt.share(row.unique_frac)}", "bold"))
        for row in fmt.rows(rows[rows["case"].isna()])]
    return Group(models, *together, Text(), types, *_more(len(found) - _NUM_TYPES, "more sequences of layers"))


def frequent(compositions: Sequence[Composition], suite: Suite) -> RenderableType:
    """Return the bricks that occur in models most often."""
    table = plain_table("brick", "layers", "uses", "models", "most in one model")
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    found = statistics.brick_reuse(statistics.suite_pieces(compositions, suite))
    for row in fmt.rows(found.head(_NUM_BRICKS)):
        table.add_row(Text(str(row.brick)), Text(str(row.layers)), Text(f"{row.num_uses:,}"),
                      Text(f"{row.num_models:,}"), Text(f"{row.most_in_one:,}"))  # fmt: skip
    return Group(Text(), table, *_more(len(found) - _NUM_BRICKS, "more bricks"), *_more(
        len(suite.bricks) - len(found), "more are updates, sums of gradients, and decoys"))


def _more(number: int, what: str) -> list[Text]:
    return [Text(f"{number:,} {what}", style="dim")] if number > 0 else []
