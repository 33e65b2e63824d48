"""Growth of memory with the input: against image area or sequence length, and training against inference."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.memory.composition import memory_composition, peak_moments
from charact.core.statistics import FittedLine, fitted_line, student_probability
from charact.record.reader import Run

SERIES = ["workload", "variant", "mode", "batch_size", "precision", "device", "settings", "ranks"]
"""Columns that are equal in the cases of a series, which differ only in input size."""
_POSITIONS = {"image": "pixel", "sequence": "token", "lookups": "lookup"}
_LINE = ["slope_bytes", "slope_error_bytes", "slope_low_bytes", "slope_high_bytes",
         "fixed_bytes", "fixed_error_bytes", "fixed_low_bytes", "fixed_high_bytes",
         "square_bytes", "linear_bytes", "spread_frac", "residual_frac"]  # fmt: skip
_PLACE = ["phase", "layer", "operator"]


@memoize
def case_series(run: Run) -> pd.DataFrame:
    """Return the series and input size of each case; cases without a recorded size are left out.

    Columns: case; workload, variant, mode, batch_size, precision, device, settings, ranks (together: a series;
    batch_size is that of each rank, settings are text such as '32 outputs, int8 cache, flash attention' or 'LoRA of
    rank 8', or empty, and ranks 'fsdp2 over 8 ranks', or empty for a single process); input_size; position ('pixel',
    'token', 'lookup', or 'unit of S' if a model's own input spec defines the size); num_positions of a sample: the
    square of the side for images, else the input size.
    """
    cases = named_series(run)
    cases = cases[cases["input_size"].notna()].astype({"input_size": "int64"})
    cases["position"] = cases["input_kind"].map(_POSITIONS).fillna("unit of S").astype("str")
    cases["num_positions"] = cases["input_size"].where(cases["position"] != "pixel", cases["input_size"] ** 2)
    return cases.drop(columns="input_kind").reset_index(drop=True)


def named_series(run: Run) -> pd.DataFrame:
    """Return case, the columns of its series, input_size and input_kind of every case."""
    settings = ["output_size", "cache", "attention", "lora_rank"]
    rows = run.cases.reindex(columns=["case", *SERIES, "input_size", "input_kind", *settings, "parallel", "world_size"])
    rows["settings"] = [_settings(*of_case) for of_case in zip(
        *(rows[name].astype(object).where(rows[name].notna(), None) for name in settings), strict=True)]
    rows["variant"] = rows["variant"].fillna("")
    has_ranks = rows[["parallel", "world_size"]].notna().all(axis="columns")
    rows["ranks"] = [f"{parallel} over {world_size:.0f} ranks" if several else "" for parallel, world_size, several
                     in zip(rows["parallel"], rows["world_size"], has_ranks, strict=True)]
    rows = rows.drop(columns=[*settings, "parallel", "world_size"])
    return rows.astype(dict.fromkeys(["case", "variant", "settings", "ranks"], "str"))


def _settings(output_size: float | None, cache: str | None, attention: str | None, lora_rank: float | None) -> str:
    """Return what tells cases with equal sizes apart, as text; empty for a default."""
    return ", ".join([*([] if output_size is None else [f"{output_size:.0f} outputs"]),
                      *([] if cache in (None, "static") else [f"{cache} cache"]),
                      *([] if attention is None else [f"{attention} attention"]),
                      *([] if lora_rank is None else [f"LoRA of rank {lora_rank:.0f}"])])


def of_series(rows: pd.DataFrame, reference: Any, columns: Sequence[str] = SERIES) -> pd.DataFrame:
    """Return the rows that equal a reference row in some columns, by default those that define a series."""
    return rows[pd.DataFrame({name: rows[name] == getattr(reference, name) for name in columns}).all(axis="columns")]


@memoize
def memory_by_size(run: Run) -> pd.DataFrame:
    """Return peak memory by category for cases that differ only in input size, smallest first.

    Columns: those of `case_series`; method; phase of the peak; category; bytes.
    """
    rows = case_series(run).merge(memory_composition(run), on="case", how="inner")
    rows = rows.sort_values([*SERIES, "input_size"], kind="stable", ignore_index=True)
    return rows[[*SERIES, "input_size", "position", "num_positions", "case", "method", "phase", "category", "bytes"]]


@memoize
def _peaks(run: Run) -> pd.DataFrame:
    """Return the peak of each case with a recorded size, by method: columns of `case_series`, method, bytes."""
    totals = memory_composition(run).groupby(["case", "method"], sort=False, as_index=False)[["bytes"]].sum()
    return case_series(run).merge(totals, on="case", how="inner")


_LINE_FRAC = 0.01
"""Largest residual of a line, as a share of the peak at its point; also the largest spread of a constant series."""
_RISE_FRAC = 0.1
"""Largest residual of a line, as a share of its rise over the sizes: below it, a nearly constant series is no line."""
_STRAIGHT_FRAC = 0.001
"""Largest residual of a line, as a share of the peak at its point, up to which no square is looked for."""
_CURVED = 0.01
"""Largest p-value of the square term of a square."""


@memoize
def growth_by_input_size(run: Run) -> pd.DataFrame:
    """Return how the peaks of each series grow with the input: in a line, with the square, not at all, or in steps.

    Columns: the series; position; method; num_sizes; shape: 'line' if the peaks rise and each is within 1 % of a
    least-squares line and within 10 % of the line's rise; 'square' if the same is true of a least-squares parabola with
    a positive square term (p < 0.01, at least 4 sizes) and no line is within 0.1 %; 'constant' if they differ by at
    most 1 %; otherwise 'steps' (see `memory_steps`); null for one size. Two sizes cannot show a line. For a square:
    square_bytes (bytes per squared position), linear_bytes (per position) and fixed_bytes. spread_frac, the difference
    of the largest
    and the smallest peak over the largest. For a line only: slope_bytes (bytes per position, for the whole batch) and
    fixed_bytes, each with its standard error and 95 % interval (_error, _low, _high, and its half-width _half);
    sample_slope_bytes = slope_bytes / batch size; residual_frac, the largest residual over its peak. reason, why a
    value is missing. fixed_bytes is null for a line that meets 0 at a positive size.

    *Error*: least squares, intervals from Student's t. Estimates have no noise, and measurements little: the error
    mostly measures the deviation from a line, such as from rounded sizes or attention. With three sizes the intervals
    are wide (Student's t with one degree of freedom), even for a good line.
    """
    rows: list[dict[str, Any]] = []
    peaks, keys = _peaks(run), [*SERIES, "position", "method"]
    for key, group in peaks.groupby(keys, sort=False):
        series = dict(zip(keys, key, strict=True))
        rows.append(series | {"num_sizes": len(group)}
                    | _shape(group["num_positions"].tolist(), group["bytes"].tolist()))
    growth = pd.DataFrame(rows, columns=[*keys, "num_sizes", "shape", *_LINE, "reason"])
    growth = growth.astype(dict.fromkeys(_LINE, "float64") | peaks.dtypes[keys].to_dict())
    for name in ("slope", "fixed"):
        growth[f"{name}_half_bytes"] = (growth[f"{name}_high_bytes"] - growth[f"{name}_low_bytes"]) / 2
    growth["sample_slope_bytes"] = growth["slope_bytes"] / growth["batch_size"].astype("float64")
    return growth


def line_fits(run: Run) -> pd.DataFrame:
    """Return how well a line fits the peaks of each series with at least three sizes.

    Columns: the series; position; method; num_sizes; r_squared, the coefficient of determination of the least-squares
    line of the peak against the position (pixels or tokens). Series whose peaks are all equal are left out.
    """
    rows: list[dict[str, Any]] = []
    peaks, keys = _peaks(run), [*SERIES, "position", "method"]
    for key, group in peaks.groupby(keys, sort=False):
        if len(group) >= 3 and group["bytes"].nunique() > 1:
            r = np.corrcoef(group["num_positions"].astype(float), group["bytes"].astype(float))[0, 1]
            rows.append(dict(zip(keys, key, strict=True)) | {"num_sizes": len(group), "r_squared": float(r) ** 2})
    return pd.DataFrame(rows, columns=[*keys, "num_sizes", "r_squared"])


def _shape(positions: list[float], peaks: list[float]) -> dict[str, Any]:
    line = fitted_line(positions, peaks)
    if line is None:
        return {"reason": "one input size only"}
    spread_frac = (max(peaks) - min(peaks)) / max(peaks) if max(peaks) > 0 else 0.0
    fits = [line.intercept + line.slope * at for at in positions]
    rise_bytes = line.slope * (max(positions) - min(positions))
    residual_frac = _residual_frac(peaks, fits)
    if residual_frac > _STRAIGHT_FRAC and (square := _square(positions, peaks)):
        return {"shape": "square", "spread_frac": spread_frac} | square
    if line.errors is not None and rise_bytes > 0 and _is_on(peaks, fits, rise_bytes):
        return {"shape": "line", "spread_frac": spread_frac, "residual_frac": residual_frac} | _line_bytes(line)
    if spread_frac <= _LINE_FRAC:
        return {"shape": "constant", "spread_frac": spread_frac, "reason": "constant"}
    few = "two input sizes do not show a line" if line.errors is None else "no line"
    return {"shape": "steps", "spread_frac": spread_frac, "reason": few}


def _residual_frac(peaks: list[float], fits: Sequence[float]) -> float:
    return max(abs(peak - fit) / peak if peak > 0 else 1.0 for peak, fit in zip(peaks, fits, strict=True))


def _is_on(peaks: list[float], fits: Sequence[float], rise_bytes: float) -> bool:
    largest_bytes = max(abs(peak - fit) for peak, fit in zip(peaks, fits, strict=True))
    return _residual_frac(peaks, fits) <= _LINE_FRAC and largest_bytes <= _RISE_FRAC * rise_bytes


def _square(positions: list[float], peaks: list[float]) -> dict[str, Any] | None:
    """Return a parabola as columns of `growth_by_input_size`; None if the peaks are not on one."""
    num_degrees = len(positions) - 3
    if num_degrees < 1:
        return None
    scale = max(positions)  # so that the columns of the fit have similar sizes
    columns = np.vander(np.asarray(positions) / scale, 3, increasing=True)
    coefficients = np.polynomial.polynomial.polyfit(columns[:, 1], peaks, 2)
    fixed, linear, square = map(float, coefficients)
    fits: list[float] = (columns @ coefficients).tolist()
    squares = sum((peak - fit) ** 2 for peak, fit in zip(peaks, fits, strict=True))
    error = math.sqrt(squares / num_degrees * float(np.linalg.inv(columns.T @ columns)[2, 2]))
    is_curved = square > 0 and (not error or student_probability(square / error, num_degrees) < _CURVED)
    if not is_curved or not _is_on(peaks, fits, max(peaks) - min(peaks)):
        return None
    return {"square_bytes": square / scale**2, "linear_bytes": linear / scale, "reason": "grows with the square",
            "fixed_bytes": fixed if fixed >= 0 else None, "residual_frac": _residual_frac(peaks, fits)}


def _line_bytes(line: FittedLine) -> dict[str, Any]:
    assert line.errors is not None
    columns: dict[str, Any] = {}
    for name, value, exact in zip(("slope", "fixed"), (line.slope, line.intercept), line.errors, strict=True):
        if value < 0:  # only the intercept: a line rises
            columns["reason"] = "the line meets 0 at a positive size"
            continue
        error = round(exact, 6)  # below a millionth of a byte is rounding error
        columns |= {f"{name}_bytes": value, f"{name}_error_bytes": error,
                    f"{name}_low_bytes": value - line.factor * error,
                    f"{name}_high_bytes": value + line.factor * error}  # fmt: skip
    return columns


@memoize
def memory_steps(run: Run) -> pd.DataFrame:
    """Return the change of the peak from each input size to the next, and what is responsible for it.

    Only of series whose shape in `growth_by_input_size` is 'steps'. Columns: the series; position; method; case and
    input_size; from_case and from_size, the next smaller size; bytes, the change of the peak (negative if it falls);
    total_bytes, the peak at input_size; category with the largest change in the direction of the peak, and
    category_bytes, its change; phase, layer and operator of the peak: at the larger size for a rise, at the smaller one
    for a fall; excess_bytes, the change minus the typical change: the series' median change per position times the
    difference of positions.
    """
    keys = [*SERIES, "position", "method"]
    growth = growth_by_input_size(run)
    held = memory_by_size(run).merge(growth.loc[growth["shape"] == "steps", keys], on=keys, how="inner").pivot_table(
        index=[*keys, "num_positions", "input_size", "case"], columns="category", values="bytes", aggfunc="sum",
        sort=False, fill_value=0.0)
    places = {(row["case"], row["method"]): {name: row[name] for name in _PLACE}
              for row in peak_moments(run).to_dict("records")}
    rows: list[dict[str, Any]] = []
    for key, group in held.groupby(level=keys, sort=False):
        series = dict(zip(keys, key, strict=True))
        group = group.sort_index(level="num_positions")
        sizes = group.index.to_frame(index=False)
        changes = group.reset_index(drop=True).diff()
        steps = changes.sum(axis="columns")
        lengths = sizes["num_positions"].diff()
        bytes_of: list[float] = steps.tolist()
        typical = (steps / lengths.where(lengths > 0)).median()
        for at, (before, size) in enumerate(pairwise(sizes.to_dict("records")), start=1):
            change_bytes, of_step = bytes_of[at], changes.loc[at]
            category = str(of_step.idxmax() if change_bytes >= 0 else of_step.idxmin())
            place = places[(size if change_bytes >= 0 else before)["case"], series["method"]]
            rows.append(series | {
                "case": size["case"], "input_size": size["input_size"], "from_case": before["case"],
                "from_size": before["input_size"], "bytes": change_bytes, "total_bytes": float(group.iloc[at].sum()),
                "category": category, "category_bytes": of_step[category], **place,
                "excess_bytes": change_bytes - typical * float(lengths[at]),
            })  # fmt: skip
    numbers = ["bytes", "total_bytes", "category_bytes", "excess_bytes"]
    table = pd.DataFrame(rows, columns=[*keys, "case", "input_size", "from_case", "from_size", "bytes", "total_bytes",
                                        "category", "category_bytes", *_PLACE, "excess_bytes"])
    return table.astype({"case": "str", "from_case": "str"} | dict.fromkeys(numbers, "float64"))


def growth_by_case(run: Run) -> pd.DataFrame:
    """Return the rows of `growth_by_input_size` for each case of their series, with a column case."""
    return case_series(run)[["case", *SERIES, "position"]].merge(growth_by_input_size(run), on=[*SERIES, "position"])


def training_to_inference(run: Run) -> pd.DataFrame:
    """Return peaks of training over those of inference with all else equal, smallest input first.

    Columns: workload, variant, batch_size, precision, device, ranks; input_size, position, num_positions; method,
    the same for both; train_case and infer_case; train_bytes and infer_bytes; ratio.
    """
    alike = [name for name in SERIES if name != "mode"]
    keys = [*alike, "input_size", "position", "num_positions", "method"]
    peaks = _peaks(run)
    train, infer = (
        peaks.loc[peaks["mode"] == mode, [*keys, "case", "bytes"]].rename(
            columns={"case": f"{mode}_case", "bytes": f"{mode}_bytes"})
        for mode in ("train", "infer")
    )  # fmt: skip
    both = train.merge(infer, on=keys, how="inner")
    both["ratio"] = both["train_bytes"] / both["infer_bytes"].where(both["infer_bytes"] > 0)
    both = both.sort_values([*alike, "method", "num_positions"], kind="stable", ignore_index=True)
    return both[[*keys, "train_case", "infer_case", "train_bytes", "infer_bytes", "ratio"]]
