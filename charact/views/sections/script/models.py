"""The section Models."""


from charact.analysis.profile.breakdown import part_breakdown
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, bar
from charact.views.figures import bars
from charact.views.html.elements.blocks import PHASE, legend_of
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table


def _html(run: Run) -> Body:
    breakdown = part_breakdown(run)
    columns = [
        Column("part", "Model", unbroken=True), PHASE,
        Column("time_s", "Time", fmt.seconds, "share × median iteration time: rows sum to the headline"),
        share_column("share_frac", "Share", "part of the time of all iterations"),
    ]  # fmt: skip
    blocks = []
    for case, rows in breakdown.groupby("case", sort=False):
        named = rows.assign(part=rows["part"].fillna("none of them"))
        blocks.append(Block(
            title=str(case), case=str(case), figures=[bars.parts(str(case), named)],
            legend=legend_of(rows["phase"], palette.PHASES),
            table=table(named, f"Time of an iteration by model of {case}", columns),
        ))  # fmt: skip
    lead = (
        "A model’s name is its variable in the program’s main module, else its class. A loss, a backward and an "
        "update belong to the model whose optimizer steps next."
    )
    return Body(lead=lead, blocks=blocks)


def _summary(run: Run, case: str) -> list[Item]:
    """Return a bar for each model or optimizer if a program has several."""
    rows = part_breakdown(run).query("case == @case").dropna(subset=["part"])
    return [bar(f"Time in {part}", of_part, "phase", palette.PHASES.__getitem__)
            for part, of_part in rows.groupby("part", sort=False)]


SECTION = Section("models", "Models", 100, _html, shows=lambda run: bool(run.iterations["part"].notna().any()),
                  summary=_summary)
