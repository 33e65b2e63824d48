"""The section Ranks: what each rank does, who waits for whom, and how each rank ended."""

from dataclasses import replace
from typing import Any

import pandas as pd

from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.ranks.job_rates import job_rates
from charact.analysis.ranks.matching import rank_cases, rank_presence
from charact.analysis.ranks.stragglers import stragglers
from charact.analysis.ranks.waiting import waiting_matrix
from charact.record.reader import Run
from charact.views.charts import stacked_bars
from charact.views.document import Block, Body, Item, Line, Lines, verdict_lines
from charact.views.html.elements.blocks import HFU, MFU, PHASE, SAMPLES, TOKENS, legend_of
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette, rank_text
from charact.views.tables.model import Column, Table, share_column, table

_LEAD = (
    "Every rank ran the same program. A rank’s phases are its own work; in “communication” its host only waits, for "
    "the exchange or for a rank that comes later. Ranks leave a collective together, so the one that waits the "
    "shortest time came last: clocks of different machines are not compared."
)
_WIDEST_MATRIX = 16
"""Number of ranks up to which the waiting matrix is drawn as one."""
_MOST_DRAWN = 16
"""Number of ranks whose phases are drawn."""
_RANK = Column("rank", "Rank", fmt.number)


def _html(run: Run) -> Body:
    blocks: list[Block] = []
    lacking = rank_presence(run).query("num_missing > 0")
    if len(lacking) and not run.manifest.get("ranks"):  # else the table of ends has them
        blocks.append(Block(note="; ".join(f"{row.program}: {row.text}" for row in fmt.rows(lacking))))
    blocks += [Block(table=each) for each in _job_table(run)]
    for row in fmt.rows(stragglers(run)):
        points = [(title, getattr(row, name)) for name, title in (("evidence", "Evidence"), ("advice", "To try"))
                  if isinstance(getattr(row, name), str)]
        blocks += [Block(title=f"{row.program}: {rank_text.verdict(row)}", points=points),
                   _phases(run, str(row.program)), *_matrix(run, str(row.program))]
    return Body(lead=_LEAD, blocks=[*blocks, *_ends(run)])


def _job_table(run: Run) -> list[Table]:
    """Return the table of what all ranks reach together; none without ranks."""
    rows = job_rates(run)
    missing = [replace(column, reason=lambda row: row.reason or "a rank lacks it")
               for column in (SAMPLES, TOKENS, MFU, HFU)]
    columns = [Column("program", "Program", unbroken=True), Column("num_ranks", "Ranks", fmt.number),
               *(column for column in missing if column.name == "samples_per_s" or rows[column.name].notna().any())]
    note = "Samples/s and tokens/s are sums over the ranks; MFU is that of all devices together."
    return [table(rows, "All ranks together", columns, note)] if len(rows) else []


def _job(row: Any) -> str:
    """Return the known rates of a row of `job_rates`; empty if none is known."""
    numbers = [(row.samples_per_s, f"{fmt.number(row.samples_per_s)} samples/s"),
               (row.tokens_per_s, f"{fmt.number(row.tokens_per_s)} tokens/s"),
               (row.mfu_frac, f"MFU {fmt.share(row.mfu_frac)}"), (row.hfu_frac, f"HFU {fmt.share(row.hfu_frac)}")]
    known = ", ".join(text for number, text in numbers if not fmt.absent(number))
    return f"{row.num_ranks:.0f} ranks together: {known}" if known else ""


def _phases(run: Run, program: str) -> Block:
    of_program = rank_cases(run).query("program == @program")[["case", "rank"]]
    rows = phase_breakdown(run).merge(of_program, on="case").sort_values("rank", kind="stable")
    rows = rows.assign(label=[f"rank {rank}" for rank in rows["rank"]])
    columns = [_RANK, PHASE, Column("time_s", "Time", fmt.seconds, "share × median iteration time"),
               share_column("share_frac", "Share", "part of the rank’s iteration")]
    caption = f"Time of an iteration of {program} by rank and phase"
    drawn = rows[rows["rank"].isin(sorted(rows["rank"].unique())[:_MOST_DRAWN])]
    figures = [stacked_bars(caption, drawn, ("label", "phase", "time_s"), palette.PHASES.__getitem__,
                            "time of an iteration", row_px=44)] if len(drawn) else []
    return Block(figures=figures, legend=legend_of(rows["phase"], palette.PHASES), table=table(rows, caption, columns))


def _matrix(run: Run, program: str) -> list[Block]:
    rows = waiting_matrix(run)
    rows = rows[rows["program"] == program]
    if rows.empty:
        return []
    caption = f"Who waits for whom in {program}, per iteration"
    if rows["rank"].nunique() > _WIDEST_MATRIX:
        worst = rows.sort_values("wait_s", ascending=False, kind="stable").head(_WIDEST_MATRIX)
        columns = [_RANK, Column("for_rank", "Waits for rank", fmt.number),
                   Column("wait_s", "Wait", fmt.seconds, "mean over the iterations"),
                   share_column("share_frac", "Share", "part of the rank’s iteration")]
        return [Block(table=table(worst, caption, columns, f"The {_WIDEST_MATRIX} longest waits."))]
    matrix = rows.pivot_table("wait_s", "rank", "for_rank")
    frame = pd.DataFrame({"rank": matrix.index} | {f"for_{rank}": matrix[rank].to_numpy() for rank in matrix})
    columns = [Column("rank", "Waits", fmt.number, "the rank that waits"), *(
        Column(f"for_{rank}", f"for rank {rank}", fmt.seconds, "mean wait over the iterations",
               lambda row: "the rank itself") for rank in matrix)]
    return [Block(title="Who waits for whom", table=table(frame, caption, columns))]


def _ends(run: Run) -> list[Block]:
    ranks = run.manifest.get("ranks", [])
    if not ranks:
        return []
    rows = pd.DataFrame(ranks).reindex(columns=["rank", "local_rank", "hostname", "num_iterations", "ending", "reason"])
    columns = [
        _RANK, Column("local_rank", "Local rank", fmt.number, "on its machine", lambda row: "not known"),
        Column("hostname", "Host", reason=lambda row: "not known"),
        Column("num_iterations", "Iterations", fmt.number, "timed",
               lambda row: row.reason if isinstance(row.reason, str) else None),
        Column("ending", "How it ended", reason=lambda row: "killed"),
    ]  # fmt: skip
    missing = sorted(set(range(run.manifest.get("world_size") or 0)) - set(rows["rank"]))
    note = f"The record lacks rank {', '.join(map(str, missing))} of {run.manifest['world_size']}." if missing else ""
    traces = [(f"rank {rank['rank']}", rank[fact])
              for rank in ranks for fact in ("hung", "traceback") if rank.get(fact)]
    blocks = [Block(title="How each rank ended", table=table(rows, "How each rank ended", columns, note))]
    return [*blocks, Block(title="Errors", points=traces)] if traces else blocks


def _summary(run: Run, case: str) -> list[Item]:
    """Return the verdict about all ranks, once for the first rank of a program."""
    cases = rank_cases(run).drop_duplicates("program").query("case == @case")
    num_missing = rank_presence(run).set_index("program")["num_missing"]
    rows = stragglers(run)
    together = [Line((text, "dim")) for row in fmt.rows(job_rates(run)) if row.case == case and (text := _job(row))]
    verdicts = [verdict_lines("ranks of the record" if num_missing[row.program] else "all ranks",
                              rank_text.verdict(row), (row.evidence, row.advice))
                for row in fmt.rows(rows[rows["program"].isin(cases["program"])])]
    return [*([Lines(together)] if together else []), *verdicts]


SECTION = Section("ranks", "Ranks", 15, _html, summary=_summary, summary_order=5,
                  shows=lambda run: bool(run.manifest.get("ranks")) or len(rank_cases(run)) > 0,
                  points={"collectives": [
    ("Who waits for whom", "timing pass of every rank. Iterations are matched by order and checked by the sequence "
     "numbers of their collectives. A rank waits from its call of a collective to the end, on its own clock; the rank "
     "that waits the shortest came last. A straggler is reported from 10 % of the iteration on."),
]})
