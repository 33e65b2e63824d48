"""Tables of memory: by category, against the input, growth, estimates, needs, and what fits."""

from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.memory.composition import memory_needs, memory_peaks, weights_and_intermediate
from charact.analysis.memory.limits import memory_fits
from charact.record.reader import Run
from charact.record.schema import MEMORY_CATEGORIES
from charact.views.html.elements.blocks import CASE, PHASE
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables.model import Column, Table, share_column, table

_MOST_ROWS = 400
_METHOD = Column("method", "Method", meaning="measured or predicted")
_CATEGORY = Column("category", "Category")
_SERIES = Column("series", "Series", unbroken=True)


def composition(rows: pd.DataFrame, caption: str) -> Table:
    columns = [
        CASE, _METHOD, PHASE, _CATEGORY, Column("bytes", "Memory", fmt.num_bytes, "held through PyTorch's allocator"),
        share_column("share_frac", "Share", "part of the memory at that moment"),
    ]  # fmt: skip
    return table(rows, caption, columns)


def by_phase(rows: pd.DataFrame, caption: str) -> Table:
    shown = _wide(rows, caption, [CASE, _METHOD, PHASE])
    if len(shown.rows) <= _MOST_ROWS:
        return shown
    note = f"The first {_MOST_ROWS} of {len(shown.rows):,} rows; `charact export` writes all."
    return replace(shown, rows=shown.rows[:_MOST_ROWS], note=note)


def by_size(rows: pd.DataFrame, caption: str) -> Table:
    rows = rows.sort_values(["mode", "input_size", "method"], ascending=[False, True, True], kind="stable")
    return _wide(rows, caption, [
        Column("mode", "Mode"), Column("input_size", "Input size", fmt.number),
        Column("num_positions", "Pixels or tokens", fmt.number, "of a sample"), _METHOD,
    ])  # fmt: skip


def _wide(rows: pd.DataFrame, caption: str, keys: list[Column]) -> Table:
    """Build a row per value of the keys: the peak, and a column for each category that occurs."""
    index = [key.name for key in keys]
    wide = rows.pivot_table(index=index, columns="category", values="bytes", aggfunc="sum", sort=False).reset_index()
    categories = [name for name in MEMORY_CATEGORIES if name in wide and (wide[name] > 0).any()]
    wide = wide[[*index, *categories]].assign(total=wide[categories].sum(axis="columns"))
    held = [Column(name, words.category(name).capitalize(), fmt.num_bytes) for name in categories]
    return table(wide, caption, [*keys, Column("total", "Peak", fmt.num_bytes, "all categories"), *held])


def ratios(rows: pd.DataFrame, caption: str) -> Table:
    columns = [
        Column("label", "Series", unbroken=True),
        Column("ratio", "Training / inference", fmt.ratio, "of the peaks"),
        Column("train_bytes", "Training", fmt.num_bytes), Column("infer_bytes", "Inference", fmt.num_bytes),
        Column("input_size", "Input size", fmt.number), _METHOD,
    ]  # fmt: skip
    return table(rows, caption, columns)


def growth(rows: pd.DataFrame) -> Table:
    """Build the table of the growth of each series: its shape, and slope and fixed part of a line with intervals."""
    rows = rows.assign(series=[words.series(row) for row in fmt.rows(rows)],
                       growth=rows["shape"].map({"line": "a line", "steps": "steps", "square": "with the square"}))
    rows["growth"] = rows["growth"].fillna(pd.Series([_constant(row) for row in fmt.rows(rows)], rows.index))
    columns = [
        _SERIES, _METHOD, Column("num_sizes", "Sizes", fmt.number, "points of the fit"),
        Column("growth", "Growth", None, "a line, with the square, constant, or steps", _reason, unbroken=True),
        Column("position", "For each"),
        *([Column("square_bytes", "Per square", fmt.num_bytes, "for each squared position, of the whole batch",
                  lambda row: "no square")] if rows["square_bytes"].notna().any() else []),
        Column("slope_bytes", "Adds", fmt.num_bytes, "slope, of the whole batch", _reason),
        Column("slope_half_bytes", "± 95 %", fmt.num_bytes, "half of the slope's 95 % interval", _reason),
        Column("sample_slope_bytes", "Of a sample", fmt.num_bytes, "slope / batch size", _reason),
        Column("fixed_bytes", "Fixed", fmt.num_bytes, "intercept: memory at any size", _reason),
        Column("fixed_half_bytes", "± 95 %", fmt.num_bytes, "half of the fixed part's 95 % interval", _reason),
    ]  # fmt: skip
    note = (
        "A line is claimed if the peaks rise and each is within 1 % of the least-squares line; growth with the square "
        "if four or more sizes show it. The usual causes of steps: the peak moves to another phase, libraries round "
        "sizes up or choose another algorithm."
    )
    return table(rows, "Growth of each series", columns, note)


def _constant(row: Any) -> str | None:
    return words.growth(row, pd.DataFrame()) if row.shape == "constant" else None


def _reason(row: Any) -> str | None:
    return None if pd.isna(row.reason) else str(row.reason)


def steps(rows: pd.DataFrame) -> Table:
    """Build the table of the steps of series that do not grow in a line, with what is responsible for each."""
    rows = rows.assign(series=[words.series(row) for row in fmt.rows(rows)],
                       of=rows["category"].map(words.category))

    def outside(row: Any) -> str:
        return "outside any"

    columns = [
        _SERIES, _METHOD, Column("from_size", "From size", fmt.number), Column("input_size", "To size", fmt.number),
        Column("bytes", "Change", words.change, "of the peak"),
        Column("of", "Category", None, "category with the largest change", unbroken=True),
        Column("category_bytes", "Its change", words.change, "of this category"),
        Column("phase", "Phase", None, "of the peak: at the larger size for a rise, at the smaller for a fall", outside,
               unbroken=True),
        Column("layer", "Layer", None, "running at that peak", outside, unbroken=True),
        Column("operator", "Operator", None, "running at that peak", outside, unbroken=True),
    ]  # fmt: skip
    return table(rows, "Steps of series that do not grow in a line", columns)


def predictions(run: Run) -> Table | None:
    """Build the table of predicted and measured peaks, the parts of the estimate, and the source of its workspaces."""
    rows = memory_peaks(run)
    rows = rows[rows["predicted_bytes"].notna()]
    if rows.empty:
        return None
    rows = rows.assign(
        held=rows["is_within"].map({1.0: "yes", 0.0: "no"}), far=rows["outside_bytes"].where(rows["is_within"] == 0),
        unknown=rows["uncertain"].map(_few, na_action="ignore")
    )
    columns = [
        CASE, Column("measured_bytes", "Measured", fmt.num_bytes, "at the peak", lambda row: row.measured_reason),
        Column("predicted_bytes", "Predicted", fmt.num_bytes, "at the peak"),
        Column("error_frac", "Error", words.share_of, "predicted / measured - 1", lambda row: "not measured"),
        Column("held", "In range", None, "whether the measured peak is within the bounds", lambda row: "not measured",
               is_fault=lambda row: row.held == "no"),
        *([Column("far", "Outside by", fmt.num_bytes, "distance of the measured peak from the bounds: please report",
                  lambda row: "within" if row.held == "yes" else "not measured", is_fault=lambda row: row.held == "no")]
          if (rows["is_within"] == 0).any() else []),
        Column("low_bytes", "From", fmt.num_bytes, "lower bound of the estimate"),
        Column("high_bytes", "To", fmt.num_bytes, "upper bound of the estimate"),
        Column("tensors_bytes", "Tensors", fmt.num_bytes, "exact"),
        Column("workspaces_bytes", "Workspaces", fmt.num_bytes, "operators' temporary memory, measured or modelled"),
        Column("rounding_bytes", "Rounding", fmt.num_bytes, "added by the device's allocator, modelled"),
        Column("workspaces_method", "Workspaces are", None, "measured: each operator ran alone, at its own shapes",
               lambda row: "not recorded", unbroken=True),
        Column("num_measured_calls", "Measured calls", fmt.number, "distinct calls that may decide a phase's peak",
               lambda row: "not recorded"),
        Column("unknown", "Modelled for", None, "operators that could not run alone", lambda row: "none",
               unbroken=True),
        Column("workspaces_reason", "Because", None, "why the first of them could not", lambda row: "none"),
        Column("duration_s", "Took", fmt.seconds, "time of the estimate"),
    ]  # fmt: skip
    return table(rows, "Predicted and measured peak of each case", columns)


def _few(operators: str) -> str:
    """Return the first of several operators and the number of the others; the manifest has all."""
    first, *others = operators.split(", ")
    return f"{first} and {len(others)} more" if others else first


def weights(run: Run) -> Table:
    columns = [
        CASE, _METHOD, Column("weights_bytes", "Weights", fmt.num_bytes, "at the peak"),
        Column("intermediate_bytes", "Intermediate", fmt.num_bytes, "activations and temporary, at the peak"),
        Column("ratio", "Intermediate / weights", fmt.ratio, reason=lambda row: "no weights"),
        Column("rest_bytes", "Rest", fmt.num_bytes, "gradients, optimizer state, input, unknown"),
    ]  # fmt: skip
    return table(weights_and_intermediate(run), "Weights against intermediate results at the peak", columns)


def process(run: Run) -> Table:
    rows = memory_needs(run).dropna(subset=["allocated_bytes"])

    reserved = [
        Column("reserved_peak_bytes", "Reserved", fmt.num_bytes, "by CUDA's caching allocator", _not_cuda),
        Column("reserved_ratio", "Reserved / allocated", fmt.ratio, reason=_not_cuda),
    ]
    columns = [
        CASE, Column("allocated_bytes", "Allocated", fmt.num_bytes, "at the peak"),
        *(reserved if (rows["device_kind"] == "cuda").any() else []),
        Column("process_before_bytes", "Process before", fmt.num_bytes, "resident set before the case", _unknown),
        Column("process_peak_bytes", "Process peak", fmt.num_bytes, "largest resident set of the process", _unknown),
        Column("process_ratio", "Growth / allocated", fmt.ratio, "(peak - before) / allocated", _unknown),
    ]  # fmt: skip
    return table(rows, "Allocated, reserved and process memory of each measured case", columns)


def _not_cuda(row: Any) -> str:
    return "CUDA only"


def _unknown(row: Any) -> str:
    return "not recorded"


def needs(run: Run) -> Table:
    rows = memory_needs(run).dropna(subset=["needed_bytes"])
    rows = rows.assign(fitting=rows["fits"].map({1.0: "fits", 0.0: "does not fit"}))

    def no_device(row: Any) -> str:
        return "no device named"

    of_cuda = [
        Column("predicted_reserved_bytes", "Reserved part", fmt.num_bytes, "modelled", _not_cuda),
        Column("context_bytes", "CUDA context", fmt.num_bytes, "estimated", _not_cuda),
    ]
    columns = [
        CASE, Column("needed_bytes", "Needed", fmt.num_bytes, "predicted, uncertainty included"),
        *(of_cuda if rows["context_bytes"].notna().any() else []), Column("target", "Device", unbroken=True),
        Column("device_memory_bytes", "Has", fmt.num_bytes, "memory of that device", no_device),
        Column("margin_bytes", "Margin", fmt.num_bytes, "has - needed", no_device),
        Column("fitting", "Verdict", None, "needed against memory of the device", no_device, unbroken=True),
    ]  # fmt: skip
    return table(rows, "Memory that each case needs", columns)


def fits(run: Run) -> Table | None:
    """Build the table of the largest batch or input that fits, with its margin and the next larger value."""
    rows = memory_fits(run)
    if rows.empty:
        return None
    rows = rows.assign(
        what=rows["searched"].map(words.category),
        at=[words.held_fixed(row) for row in fmt.rows(rows)],
        ran=rows["verified"].map(words.verdict, na_action="ignore"),
        next_ran=rows["next_verified"].map(words.verdict, na_action="ignore"),
        name=[f"{words.model(row.workload, row.variant)}, {row.mode}, {row.precision}" for row in fmt.rows(rows)],
    )

    def nothing(row: Any) -> str:
        return "the smallest does not fit"

    def ended(row: Any) -> str:
        return "the search ended" if pd.isna(row.ended_by) else f"the search ended: {row.ended_by}"

    columns = [
        Column("name", "Workload", unbroken=True), Column("what", "Largest", unbroken=True),
        Column("value", "Fits", fmt.number, "largest that fits, predicted", nothing),
        Column("at", "At", unbroken=True),
        Column("target", "Device", unbroken=True), Column("limit_bytes", "Has", fmt.num_bytes),
        Column("needed_bytes", "Needs", fmt.num_bytes, "predicted, uncertainty included", nothing),
        Column("margin_bytes", "Margin", fmt.num_bytes, "limit - needed", nothing),
        Column("ran", "Run", None, "whether it was run under the limit", lambda row: "not run", unbroken=True),
        Column("next_value", "Next", fmt.number, "next larger value", ended),
        Column("next_needed_bytes", "Would need", fmt.num_bytes, "predicted", ended),
        Column("next_ran", "Run", None, "whether it was run under the limit", lambda row: "not run", unbroken=True),
    ]  # fmt: skip
    return table(rows, "Largest batch or input that fits", columns)
