"""The section Operations: rates against the ceilings, every problem, and sparse against dense products."""

from collections.abc import Iterator

import pandas as pd

from charact.analysis.operations.sparsity import sparse_crossover, sparse_speeds
from charact.analysis.operations.timings import call_times, operation_cases, operation_shares, operation_times
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.figures import operations as figures
from charact.views.html.elements.blocks import why_nothing
from charact.views.section import Scalar, Section
from charact.views.sections.profile.roofline import roof_over
from charact.views.tables import format as fmt
from charact.views.tables import operation_tables as tables
from charact.views.tables import palette

_NUM_DRAWN = 12
_NUM_SIZES = 6
_LEAD = (
    "A time is the median of one call, with its 95 % interval; {cache}. FLOP "
    "count 1 multiply-add as 2; if a suite counts differently, tables show its number and convention too. Bytes are "
    "inputs read and outputs written once. Every result was compared with one in float64."
)
_CACHE = {
    "no": "inputs are rotated, so that they are cold in cache",
    "yes": "the same inputs are reused (hot), so that a cache may hold them",
    "both": "inputs are rotated, except for problems measured hot",
}


def operations(run: Run) -> Body:
    """Build the section: rates against the ceilings, problems of each operation, sparse against dense, failures."""
    times = operation_times(run)
    missing = [(row.case, f"{row.status}: {fmt.failure(row.status, row.reason)}")
               for row in fmt.rows(operation_cases(run).query("status != 'ok'"))]
    failed = [Block(title="Failed problems", missing=missing)] if missing else []
    if times.empty:
        return Body(blocks=failed or [Block(note=why_nothing(run, "ops"))])
    hot = set(times["hot"].dropna())
    lead = _LEAD.format(cache=_CACHE[hot.pop() if len(hot) == 1 else "both"])
    problems = [_operation(str(name), rows) for name, rows in times.groupby("operation", sort=False)]
    return Body(lead=lead, blocks=[*_rates(run, times), *problems, *_sparse(run), *failed])


def _rates(run: Run, times: pd.DataFrame) -> list[Block]:
    """Return a block per precision and device: rates of operations below the roofline, and their shares of it."""
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
    """Build the block of an operation: the slowest problems as bars, all problems as a table."""
    timed = rows.dropna(subset=["median_s"])
    differing = [column.name for column in tables.places(timed)]
    labels = []
    for row in fmt.rows(timed):  # the problem, and the precision, layout or device where these differ
        words = [str(getattr(row, name)) for name in differing if pd.notna(getattr(row, name))]
        labels.append(", ".join([row.problem, *(word for word in words if not row.problem.endswith(f":{word}"))]))
    timed = timed.assign(label=pd.Series(labels, timed.index, dtype="str"))
    sums = timed.groupby("label", sort=False)["median_s"].sum().sort_values(ascending=False, kind="stable")
    drawn = timed[timed["label"].isin(sums.index[:_NUM_DRAWN])]
    drawn = drawn.sort_values("label", key=lambda labels: labels.map(sums), ascending=False, kind="stable")
    left_out = f"The figure shows the {_NUM_DRAWN} slowest of {len(sums)}; the table has all."
    return Block(
        title=name, figures=figures.by_problem(name, drawn) if len(drawn) else [], legend=tables.directions(drawn),
        table=tables.problems(name, rows),
        note=" ".join(filter(None, [left_out if len(sums) > _NUM_DRAWN else "", tables.notes(rows)])),
    )  # fmt: skip


def _sparse(run: Run) -> list[Block]:
    """Return blocks of sparse products against dense ones, and the density at which both take the same time."""
    speeds, crossovers = sparse_speeds(run), sparse_crossover(run)
    if speeds.empty:
        return []
    blocks = []
    places = ["precision", "device", "direction"]
    for key, rows in speeds.groupby(places, sort=False):
        precision, device, direction = map(str, key)
        title = f"Sparse against dense: {fmt.DIRECTIONS[direction]}, {precision}, {device}"
        here = crossovers[(crossovers[places] == list(key)).all(axis="columns")]
        # A line needs two densities, and a dense product for comparison.
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


def _scalars(run: Run) -> Iterator[Scalar]:
    """Yield the time of each call per operation and direction, and its rate if FLOP are counted."""
    for row in call_times(run).to_dict("records"):
        for tag, name in (("call_s", "time_s"), ("flop_per_s", "flop_per_s")):
            if pd.notna(row[name]):
                yield Scalar(f"{row['case']}/{tag}/{row['direction']}", row["repetition"], row[name])


SECTION = Section("operations", "Operations", 50, operations, ("ops",), ("problems",), scalars=_scalars,
                  points={"ops": [
    ("Time of an operation", "one call, including the allocation of its result. Enough calls are timed together "
     "for the clock’s resolution; on CUDA with two events. Inputs rotate through more memory than the last-level "
     "cache, except for hot problems. The interval is that of the median over the repetitions."),
    ("Total execution time", "of a suite: the sum of its problems’ times, each problem once in every direction."),
    ("FLOP and bytes of an operation", "from its sizes: 1 multiply-add is 2 FLOP; inputs read and outputs written "
     "once. If a suite counts differently, tables show its own count too."),
    ("Error", "the largest difference from the same operation in float64, over that result’s largest magnitude; the "
     "tolerance is the error that the precision allows."),
]})
