"""Tables of basic operations: suites, problems, and their shares of the ceilings."""

from dataclasses import replace
from typing import Any

import pandas as pd

from charact.views.document import Legend
from charact.views.html.elements.blocks import CASE, STATUS
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, table

_PLACES = [Column("set", "Set", reason=lambda row: "the suite has none"),
           Column("layout", "Layout", reason=lambda row: "dense"), Column("precision", "Precision"),
           Column("device", "Device")]  # fmt: skip


def _no_time(row: Any) -> str | None:
    return row.time_reason if isinstance(row.time_reason, str) else None


def no_flop(row: Any) -> str:
    """Return why a row lacks FLOP."""
    return "none are counted"


def no_share(row: Any) -> str | None:
    """Return why a row lacks its share of the ceiling."""
    return row.share_reason if isinstance(row.share_reason, str) else None


DIRECTION = Column("direction_label", "Direction", unbroken=True)
_PUBLISHED = Column("published_flop", "Published FLOP", fmt.num_flop, "count of the suite",
                    lambda row: "same count")  # fmt: skip
_CONVENTION = Column("convention", "Convention", None, "how the suite counts, or writes sizes",
                     lambda row: "as here", wide=True)  # fmt: skip


def places(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of set, layout, precision and device in which the rows differ."""
    return [column for column in _PLACES if rows[column.name].nunique(dropna=False) > 1]


def _where_known(column: Column, rows: pd.DataFrame) -> list[Column]:
    return [column] if rows[column.name].notna().any() else []


def with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the labels of the directions to the rows."""
    return rows.assign(direction_label=rows["direction"].map(fmt.DIRECTIONS))


def problems(operation: str, times: pd.DataFrame) -> Table:
    """Build the table of every problem of an operation in each direction."""
    def few(row: Any) -> str:
        return _no_time(row) or "fewer than 6 repetitions"

    def not_checked(row: Any) -> str:
        return _no_time(row) or "not checked"

    columns = [
        Column("problem", "Problem", unbroken=True), *places(times), DIRECTION,
        Column("median_s", "Time", fmt.seconds, "median of a call", _no_time),
        Column("low_s", "95 % from", fmt.seconds, "lower end of the median's interval", few),
        Column("high_s", "95 % to", fmt.seconds, "upper end of the median's interval", few),
        Column("flop", "FLOP", fmt.num_flop, "of a call, 1 MAC = 2 FLOP", no_flop), *_where_known(_PUBLISHED, times),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "achieved",
               lambda row: _no_time(row) or no_flop(row)),
        Column("bytes_per_s", "Bytes/s", fmt.byte_rate, "inputs read and outputs written once, over time", _no_time),
        Column("share_frac", "Of the ceiling", fmt.share, "time of the work at the ceilings / its time",
               no_share, is_share=True),
        Column("limit", "Nearer ceiling", None, "compute or bandwidth", no_share, unbroken=True),
        Column("max_error", "Error", fmt.error, "largest difference from float64, over the result's largest magnitude",
               not_checked),
        Column("tolerance", "Tolerance", fmt.error, "what the precision allows", not_checked),
        Column("num_repetitions", "Repetitions", fmt.number, "timed", _no_time),
        Column("ended_by", "Ended by", None, "'target met': the interval is narrow enough",
               lambda row: _no_time(row) or "not recorded", unbroken=True),
        *_where_known(_CONVENTION, times),
    ]  # fmt: skip
    rows = with_labels(times).assign(ended_by=[fmt.ENDED_BY.get(reason, reason) for reason in times["ended_by"]])
    return table(rows, f"Problems of {operation}", columns)


def notes(times: pd.DataFrame) -> str:
    """Return notes on imprecise times, rows above a ceiling, and inexact results."""
    above, wrong = int((times["share_frac"] > 1).sum()), int((times["max_error"] > times["tolerance"]).sum())
    wide = int((times["ended_by"].notna() & (times["ended_by"] != "precision")).sum())
    texts = [f"{wide} {fmt.LESS_PRECISE}."] if wide else []
    texts += [f"{above} {fmt.ABOVE_A_CEILING}."] if above else []
    texts += [f"{wrong} differ from float64 by more than their precision allows."] if wrong else []
    return " ".join(texts)


def totals(rows: pd.DataFrame) -> Table:
    """Build the table of the total execution time of each suite."""
    def failed(row: Any) -> str:
        return "all of them failed"

    columns = [
        Column("suite", "Suite"), Column("set", "Set", reason=lambda row: "the suite has none"),
        Column("operation", "Operation"),
        *(column for column in places(rows) if column.name != "set"),
        Column("num_problems", "Problems", fmt.number),
        Column("num_failed", "Failed", fmt.number, "left out of totals"),
        Column("total_s", "Total execution time", fmt.duration, "each problem once, in every direction", failed),
        Column("flop", "FLOP", fmt.number, "of all of them", no_flop),
        *_where_known(replace(_PUBLISHED, to_text=fmt.number), rows),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / total execution time", no_flop),
    ]  # fmt: skip
    note = " ".join(f"Published FLOP of {row.suite}, {row.operation}: {row.convention}."
                    for row in fmt.rows(rows.dropna(subset=["convention"]).drop_duplicates("convention")))
    return table(rows, "Total execution time of each suite", columns, note)


def shares(rows: pd.DataFrame) -> Table:
    """Build the table of each operation's share of the ceilings."""
    columns = [
        Column("operation", "Operation"), DIRECTION, *(column for column in places(rows.assign(set=None))),
        Column("num_problems", "Problems", fmt.number, "timed"),
        Column("flop_per_s", "Best FLOP/s", fmt.flop_rate, "of its problems", no_flop),
        Column("bytes_per_s", "Best bytes/s", fmt.byte_rate, "of its problems"),
        Column("median_share_frac", "Median of the ceiling", fmt.share, "over its problems", no_share, is_share=True),
        Column("best_share_frac", "Best", fmt.share, "of its problems", no_share, is_share=True),
    ]  # fmt: skip
    return table(with_labels(rows), "Operations against the ceilings", columns)


def speeds(rows: pd.DataFrame, caption: str) -> Table:
    """Build the table of sparse products against dense ones."""
    none = "no dense product of this size was measured"

    def few(row: Any) -> str:
        return none if pd.isna(row.ratio) else "fewer than 6 repetitions"

    columns = [
        Column("size", "Size", unbroken=True), Column("layout", "Layout"),
        Column("density_frac", "Density", fmt.share, "share of numbers that are not zero"),
        Column("time_s", "Sparse", fmt.seconds), Column("dense_s", "Dense", fmt.seconds, "", lambda row: none),
        Column("ratio", "Sparse / dense", fmt.ratio, "below 1 sparse is faster", lambda row: none),
        Column("low", "From", fmt.ratio, "lowest ratio within the 95 % intervals of both times",
               few),
        Column("high", "To", fmt.ratio, "highest ratio within the 95 % intervals of both times",
               few),
    ]  # fmt: skip
    return table(rows, caption, columns)


def crossovers(rows: pd.DataFrame) -> Table:
    """Build the table of densities below which sparse products are faster."""
    columns = [
        Column("size", "Size", unbroken=True), DIRECTION, *places(rows.assign(set=None)),
        Column("crossover_density_frac", "Sparse is faster below", fmt.share, "density at which both are equally fast",
               lambda row: row.reason),
        Column("from_density_frac", "For certain below", fmt.share, "highest density with a significant difference",
               lambda row: "no crossover"),
        Column("to_density_frac", "Dense for certain above", fmt.share, "lowest density with a significant difference",
               lambda row: "no crossover"),
        Column("low_density_frac", "Measured from", fmt.share, "density"),
        Column("high_density_frac", "to", fmt.share, "density"), Column("num_densities", "Densities", fmt.number),
    ]  # fmt: skip
    return table(with_labels(rows), "Density below which sparse products are faster", columns)


def headlines(cases: pd.DataFrame, *more: Column, note: str = "") -> Table:
    """Build the table of every problem, summed over its directions; `more` columns follow the case."""
    def why(row: Any) -> str:
        return "the record has no repetitions" if row.status == "ok" else str(row.status)

    columns = [
        CASE, *more, STATUS, Column("time_s", "Time", fmt.seconds, "sum of the directions' medians", why),
        Column("flop", "FLOP", fmt.num_flop, "of all directions", no_flop),
        Column("bytes", "Bytes", fmt.num_bytes, "of all directions", lambda row: "not counted"),
    ]  # fmt: skip
    return table(cases, "Time of each problem", columns, note)


def directions(times: pd.DataFrame) -> Legend:
    """Return the colors of the directions that occur, by label."""
    there = set(times["direction"])
    return [(fmt.DIRECTIONS[name], color) for name, color in palette.DIRECTIONS.items() if name in there]
