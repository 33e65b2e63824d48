"""The section of basic operations: rates below the ceilings, every problem, sparse against dense."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from charact.analysis.operations.sparsity import sparse_crossover, sparse_speeds
from charact.analysis.operations.timings import call_times, operation_cases, operation_shares, operation_times
from charact.record.reader import Run
from charact.views.html.elements import operations as figures
from charact.views.html.elements.blocks import Block, Body, why_nothing
from charact.views.section import Scalar, Section
from charact.views.sections.profile.roofline import roof_over
from charact.views.tables import format as fmt
from charact.views.tables import operation_tables as tables
from charact.views.tables import palette

_NUM_DRAWN = 12
_NUM_SIZES = 6
_LEAD = (
    "Each operation by itself, of given sizes. A time is the median of one call, with its 95 % interval; {cache}. FLOP "
    "count 1 multiply-add as 2; where a suite counts otherwise its number and convention stand beside ours. Bytes are "
    "inputs read and outputs written once. Every result was compared with one in float64."
)
_CACHE = {
    "no": "many inputs are rotated, so that no cache holds them",
    "yes": "the same inputs are used again (hot), so that a cache may hold them",
    "both": "inputs are rotated, but for problems measured hot",
}


def operations(run: Run) -> Body:
    """Rates against the ceilings, each operation's problems, sparse against dense, and what failed."""
    times = operation_times(run)
    failed = _failed(run)
    if times.empty:
        return Body(blocks=failed or [Block(note=why_nothing(run, "ops"))])
    hot = set(times["hot"].dropna())
    lead = _LEAD.format(cache=_CACHE[hot.pop() if len(hot) == 1 else "both"])
    blocks = _rates(run, times)
    blocks += [_operation(str(name), rows) for name, rows in times.groupby("operation", sort=False)]
    return Body(lead=lead, blocks=[*blocks, *_sparse(run), *failed])


def _rates(run: Run, times: pd.DataFrame) -> list[Block]:
    """A block each precision and device: rates of all operations below the roof, and how near they come to it."""
    shares = operation_shares(run)
    blocks = []
    for (precision, device), rows in times.groupby(["precision", "device"], sort=False):
        here = shares[(shares["precision"] == precision) & (shares["device"] == device)]
        if here.empty:
            continue
        drawn = figures.rates(f"Rates in {precision} on {device}", rows, roof_over(run, rows["case"].iloc[0]))
        names = rows.loc[rows["flop_per_s"].notna(), "operation"].unique()
        blocks.append(Block(
            title=f"Against the ceilings: {precision}, {device}", figures=drawn,
            legend=[(str(name), palette.operation(str(name))) for name in names], table=tables.shares(here),
        ))  # fmt: skip
    return blocks


def _operation(name: str, rows: pd.DataFrame) -> Block:
    """The problems of an operation: the longest as bars, all of them as a table."""
    timed = _labelled(rows.dropna(subset=["median_s"]))
    sums = timed.groupby("label", sort=False)["median_s"].sum().sort_values(ascending=False, kind="stable")
    drawn = timed[timed["label"].isin(sums.index[:_NUM_DRAWN])]
    drawn = drawn.sort_values("label", key=lambda labels: labels.map(sums), ascending=False, kind="stable")
    left_out = f"Drawn are the {_NUM_DRAWN} longest of {len(sums)}; the table has them all."
    return Block(
        title=name, figures=figures.by_problem(name, drawn) if len(drawn) else [], legend=tables.directions(drawn),
        table=tables.problems(name, rows),
        note=" ".join(filter(None, [left_out if len(sums) > _NUM_DRAWN else "", tables.notes(rows)])),
    )  # fmt: skip


def _labelled(times: pd.DataFrame) -> pd.DataFrame:
    """Rows with the name of their problem, and of the place where it was run as far as these differ."""
    differing = [column.name for column in tables.places(times)]

    def label(row: Any) -> str:
        words = [str(getattr(row, name)) for name in differing if pd.notna(getattr(row, name))]
        return ", ".join([row.problem, *(word for word in words if not row.problem.endswith(f":{word}"))])

    return times.assign(label=pd.Series([label(row) for row in fmt.rows(times)], times.index, dtype="str"))


def _sparse(run: Run) -> list[Block]:
    """Sparse products against dense ones, and the density at which they take as long."""
    speeds, crossovers = sparse_speeds(run), sparse_crossover(run)
    if speeds.empty:
        return []
    blocks = []
    places = ["precision", "device", "direction"]
    for key, rows in speeds.groupby(places, sort=False):
        precision, device, direction = map(str, key)
        title = f"Sparse against dense: {fmt.DIRECTIONS[direction]}, {precision}, {device}"
        here = crossovers[(crossovers[places] == list(key)).all(axis="columns")]
        # Lines need two densities, and a dense product to be held against.
        compared = rows.loc[rows["ratio"].notna(), "size"]
        sizes = here.loc[(here["num_densities"] > 1) & here["size"].isin(compared), "size"].unique()
        drawn = [
            figures.sparse_against_dense(f"{title}, {size}", rows[rows["size"] == size],
                                         here[(here["size"] == size) & here["crossover_density_frac"].notna()])
            for size in sizes[:_NUM_SIZES]
        ]  # fmt: skip
        blocks.append(Block(
            title=title, figures=drawn, table=tables.speeds(rows, title),
            legend=[(name, color) for name, color in palette.LAYOUTS.items() if name in set(rows["layout"])],
        ))  # fmt: skip
    return [*blocks, Block(table=tables.crossovers(crossovers))]


def _failed(run: Run) -> list[Block]:
    cases = operation_cases(run)
    missing = [(row.case, f"{row.status}: {fmt.failure(row.status, row.reason)}")
               for row in fmt.rows(cases) if row.status != "ok"]  # fmt: skip
    return [Block(title="Failed problems", missing=missing)] if missing else []


def _scalars(run: Run) -> Iterator[Scalar]:
    """Time of a call of each operation in each direction, and its rate where FLOP are counted."""
    for row in call_times(run).to_dict("records"):
        for tag, name in (("call_s", "time_s"), ("flop_per_s", "flop_per_s")):
            if pd.notna(row[name]):
                yield Scalar(f"{row['case']}/{tag}/{row['direction']}", row["repetition"], row[name])


SECTION = Section("operations", "Operations", 50, operations, ("ops",), ("problems",), scalars=_scalars,
                  points={"ops": [
    ("Time of an operation", "one call, its result’s memory included. So many calls are timed together that the clock "
     "does not matter; on CUDA between two events. Inputs are rotated through more memory than the last cache holds, "
     "unless they were to stay there (hot). The interval is that of the median over the repetitions."),
    ("Total execution time", "of a suite: the sum of its problems’ times, each once and in every direction."),
    ("FLOP and bytes of an operation", "from its sizes: 1 multiply-add is 2 FLOP; inputs read and outputs written "
     "once. A suite’s own count stands beside it where it counts otherwise."),
    ("Error", "the largest difference from the same operation in float64, over that result’s largest magnitude; what "
     "the precision allows of it is the tolerance."),
]})
