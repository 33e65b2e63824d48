"""Growth of memory with the input: against image area or sequence length, and training against inference."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.memory.composition import memory_composition
from charact.core.statistics import Line, fitted_line
from charact.record.reader import Run

SERIES = ["workload", "variant", "mode", "batch_size", "precision", "device", "ranks"]
"""Columns that are equal in the cases of a series, which differ only in input size."""
_POSITIONS = {"image": "pixel", "sequence": "token"}
_LINE = ["slope_bytes", "slope_error_bytes", "slope_low_bytes", "slope_high_bytes",
         "fixed_bytes", "fixed_error_bytes", "fixed_low_bytes", "fixed_high_bytes"]  # fmt: skip


@memoize
def case_series(run: Run) -> pd.DataFrame:
    """Return the series and input size of each case; cases without a recorded size are left out.

    Columns: case; workload, variant, mode, batch_size, precision, device, ranks (together: a series; batch_size is that
    of each rank, and ranks 'fsdp2 over 8 ranks', or empty for a single process); input_size; position ('pixel',
    'token', or 'unit of S' if a model's own input spec defines the size); num_positions of a sample: the square of the
    side for images, else the input size.
    """
    cases = named_series(run)
    cases = cases[cases["input_size"].notna()].astype({"input_size": "int64"})
    cases["position"] = cases["input_kind"].map(_POSITIONS).fillna("unit of S").astype("str")
    cases["num_positions"] = cases["input_size"].where(cases["position"] != "pixel", cases["input_size"] ** 2)
    return cases.drop(columns="input_kind").reset_index(drop=True)


def named_series(run: Run) -> pd.DataFrame:
    """Return case, the columns of its series, input_size and input_kind of every case."""
    found = run.cases.reindex(columns=["case", *SERIES, "input_size", "input_kind", "parallel", "world_size"])
    found["variant"] = found["variant"].fillna("")
    together = found[["parallel", "world_size"]].notna().all(axis="columns")
    found["ranks"] = [f"{parallel} over {world_size:.0f} ranks" if known else "" for parallel, world_size, known
                      in zip(found["parallel"], found["world_size"], together, strict=True)]
    return found.drop(columns=["parallel", "world_size"]).astype({"case": "str", "variant": "str", "ranks": "str"})


def of_series(rows: pd.DataFrame, one: Any, columns: Sequence[str] = SERIES) -> pd.DataFrame:
    """Return the rows that equal another row in some columns, by default those that define a series."""
    return rows[pd.DataFrame({name: rows[name] == getattr(one, name) for name in columns}).all(axis="columns")]


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


@memoize
def memory_growth(run: Run) -> pd.DataFrame:
    """Return a line fitted to the peaks of each series: bytes per pixel or token, and a fixed part.

    Columns: the series; position; method; num_sizes; slope_bytes (bytes per position, for the whole batch) and
    fixed_bytes, each with its standard error and 95 % interval (_error, _low, _high, and its half-width _half);
    sample_slope_bytes = slope_bytes / batch size; reason, why errors or all values are missing.

    *Error*: least squares, intervals from Student's t. Estimates have no noise, and measurements little: the error
    mostly shows how far the growth is from linear (another phase's peak, sizes rounded, attention).
    """
    rows: list[dict[str, Any]] = []
    for key, group in _peaks(run).groupby([*SERIES, "position", "method"], sort=False):
        line = fitted_line(group["num_positions"].tolist(), group["bytes"].tolist())
        series = dict(zip([*SERIES, "position", "method"], key, strict=True))
        rows.append(series | {"num_sizes": len(group)} | _line_bytes(line))
    growth = pd.DataFrame(rows, columns=[*SERIES, "position", "method", "num_sizes", *_LINE, "reason"])
    growth = growth.astype(dict.fromkeys(_LINE, "float64"))
    for name in ("slope", "fixed"):
        growth[f"{name}_half_bytes"] = (growth[f"{name}_high_bytes"] - growth[f"{name}_low_bytes"]) / 2
    growth["sample_slope_bytes"] = growth["slope_bytes"] / growth["batch_size"].astype("float64")
    return growth


def _line_bytes(line: Line | None) -> dict[str, Any]:
    """Return a line as columns of `memory_growth`."""
    if line is None:
        return {"reason": "one input size only"}
    found: dict[str, Any] = {"slope_bytes": line.slope, "fixed_bytes": line.intercept}
    if line.errors is None:
        return found | {"reason": "two input sizes: a line through two points has no error"}
    for name, value, exact in zip(("slope", "fixed"), (line.slope, line.intercept), line.errors, strict=True):
        error = round(exact, 6)  # below a millionth of a byte is rounding error
        found |= {f"{name}_error_bytes": error, f"{name}_low_bytes": value - line.factor * error,
                  f"{name}_high_bytes": value + line.factor * error}  # fmt: skip
    return found


def training_to_inference(run: Run) -> pd.DataFrame:
    """Return peaks of training over those of inference with all else equal, smallest input first.

    Columns: workload, variant, batch_size, precision, device; input_size, position, num_positions; method, the same for
    both; train_case and infer_case; train_bytes and infer_bytes; ratio.
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
