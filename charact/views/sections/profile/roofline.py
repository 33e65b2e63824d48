"""The section Work and roofline: achieved rates against the measured ceilings of the machine."""

from typing import Any

import pandas as pd

from charact.analysis.efficiency import roofline as roofline_analysis
from charact.analysis.efficiency.ceilings import (
    case_ceilings,
    ceilings,
    ceilings_disturbed_frac,
    ceilings_reason,
    observed_ceilings,
    product_precision,
)
from charact.analysis.profile.case_summary import iteration_times
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.figures.roofline import Roof, roofline_figure
from charact.views.html.elements.blocks import CASE, missing_cases, operator_legend, why_nothing
from charact.views.section import Section
from charact.views.sections.profile._shared import NUM_TOP
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table, top

_LEAD = (
    "Counted work and its rate, below the measured ceilings of this machine: the best rate of matrix products, and the "
    "memory bandwidth."
)
_RATES = {"gemm": "matrix products", "copy": "copy", "triad": "triad", "launch": "launch of an operator",
          "host_to_device": "host to device", "device_to_host": "device to host"}  # fmt: skip


def _html(run: Run) -> Body:
    by_phase = roofline_analysis.roofline(run, "phase")
    if by_phase.empty:
        return Body(blocks=[Block(note=why_nothing(run, "flop")), *_ceilings(run)])
    by_type = roofline_analysis.roofline(run, "operator_type")
    blocks = [*_below_roofs(run, by_type), _parts(by_phase, by_type)]
    layers, note = top(roofline_analysis.roofline(run, "layer"), NUM_TOP)
    if len(layers):
        blocks.append(Block(folded=True, table=_table(layers, CASE, Column("layer", "Layer"), note=note)))
    return Body(lead=_LEAD, blocks=[*blocks, *_ceilings(run), *missing_cases(run, "flop", by_phase["case"])])


def _below_roofs(run: Run, types: pd.DataFrame) -> list[Block]:
    """Return a figure per roofline, with the operator types of all cases that are below it."""
    placed = types.dropna(subset=["flop_per_byte", "flop_per_s"])
    modes, times = run.cases.set_index("case")["mode"], iteration_times(run).groupby("case")["wall_s"].median()
    shares = placed["time_s"].astype(float) / placed["case"].map(times).astype(float)
    points = placed.assign(name=placed["operator_type"], text=placed["case"] + ", " + placed["operator_type"],
                           mode=placed["case"].map(modes), share_frac=shares.fillna(1).clip(upper=1))
    by_roof: dict[Roof, list[str]] = {}
    for case in placed["case"].drop_duplicates():
        if (roof := roof_over(run, str(case))) is not None:
            by_roof.setdefault(roof, []).append(str(case))
    drawn = [roofline_figure(f"Operator types below the roofline of {roof.precision}",
                             points[points["case"].isin(cases)], palette.operator_type, roof)
             for roof, cases in by_roof.items()]
    legend = operator_legend(placed["operator_type"].astype(str))
    note = "A point is an operator type of a case; its area is its share of the iteration’s time."
    return [Block(figures=drawn, legend=legend, note=note)] if drawn else []


def _parts(phases: pd.DataFrame, types: pd.DataFrame) -> Block:
    """Build the table of each case's phases and operator types."""
    rows = pd.concat([phases.rename(columns={"phase": "what"}), types.rename(columns={"operator_type": "what"})])
    order = {case: number for number, case in enumerate(rows["case"].unique())}
    rows = rows.sort_values("case", key=lambda cases: cases.map(order), kind="stable", ignore_index=True)
    rows["clock"] = rows["clock"].map({"timing": "timing pass", "profiler": "under the profiler"})
    clock = Column("clock", "Timed in", meaning="the profiler lengthens short operators", unbroken=True)
    return Block(folded=True, table=_table(rows, CASE, Column("what", "Phase or operator type"), clock,
                                           caption="Phases and operator types against the roofline"))


def _table(rows: pd.DataFrame, *names: Column, caption: str = "Layers against the roofline", note: str = "") -> Table:
    def reason(row: Any) -> str | None:
        return row.reason if isinstance(row.reason, str) else "no FLOP counted"

    def no_flop(row: Any) -> str | None:
        return "no formula" if pd.notna(row.bytes) else reason(row)

    columns = [
        *names, share_column("share_frac", "Of the ceiling", "time of the work at the ceilings / its time"),
        Column("limit", "Nearer ceiling", None, "compute or bandwidth", reason),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "achieved", reason),
        Column("bytes_per_s", "Bytes/s", fmt.byte_rate, "achieved", reason),
        Column("flop_per_byte", "FLOP/byte", fmt.number, "arithmetic intensity", reason),
        Column("time_s", "Time", fmt.seconds, "per iteration", reason),
        Column("flop", "FLOP", fmt.num_flop, "counted per iteration", no_flop),
        Column("bytes", "Bytes", fmt.num_bytes, "per iteration", reason),
        Column("bytes_method", "Bytes are", None, "modelled: inputs and outputs once; measured: by a counter", reason),
    ]  # fmt: skip
    above = int((rows["share_frac"] > 1).sum())
    if above:
        note = f"{note} {above} above 100 %: from a cache, or with fewer bytes than modelled.".strip()
    return table(rows, caption, columns, note)


def roof_over(run: Run, case: str) -> Roof | None:
    """Return the roofline of a case; None if a ceiling is not known."""
    over = case_ceilings(run).set_index("case").loc[case]
    if pd.isna(over["peak_flop_per_s"]) or pd.isna(over["peak_bytes_per_s"]):
        return None
    entry, measured = run.entry(case), ceilings(run)
    here = measured[measured["ceiling"].isin(["copy", "triad"]) & measured["device"].str.startswith(entry.device)]
    caches = here[here["level"] != "memory"].groupby("level", sort=False)["value"].max()
    levels = [(str(level), float(value)) for level, value in caches.items()]
    return Roof(product_precision(entry), float(over["peak_flop_per_s"]),
                (*levels, ("memory", float(over["peak_bytes_per_s"]))))


def _ceilings(run: Run) -> list[Block]:
    """Return the table of measured ceilings and datasheet values."""
    reached = observed_ceilings(run).assign(ceiling="gemm", unit="flop_per_s")
    rows = pd.concat([ceilings(run), reached], ignore_index=True) if len(reached) else ceilings(run)
    reason = ceilings_reason(run)
    if reason is not None:
        return [Block(title="Ceilings", note=fmt.missing(reason))]
    to_text = {"flop_per_s": fmt.flop_rate, "bytes_per_s": fmt.byte_rate, "s": fmt.seconds}
    rows = rows.assign(
        what=[_RATES.get(row.ceiling, row.ceiling) for row in fmt.rows(rows)],
        where=[row.precision if isinstance(row.precision, str) else row.level for row in fmt.rows(rows)],
        measured=[to_text[row.unit](row.value, "not measured") for row in fmt.rows(rows)],
        stated=[to_text[row.unit](row.datasheet, "no datasheet") for row in fmt.rows(rows)],
        of_stated=rows["value"] / rows["datasheet"],
    )
    columns = [
        Column("device", "Device"), Column("what", "Ceiling"),
        Column("where", "Precision or level", reason=lambda row: "does not apply"),
        Column("working_set_bytes", "Working set", fmt.num_bytes, "", lambda row: "does not apply"),
        Column("measured", "Measured"), Column("origin", "Reached by", None, "", lambda row: "a probe"),
        Column("stated", "Datasheet"),
        Column("of_stated", "Of the datasheet", fmt.share, "", lambda row: "no datasheet"),
        Column("datasheet_source", "Source", reason=lambda row: "no datasheet"),
    ]  # fmt: skip
    had_frac = ceilings_disturbed_frac(run)
    note = "" if had_frac is None else (f"Too low: other processes left {fmt.share(had_frac)} of the cores while they "
                                        "were measured. Shares of the ceilings are too high.")
    return [Block(title="Ceilings", folded=True, table=table(rows, "Ceilings of this machine", columns), note=note)]


SECTION = Section("roofline", "Work and roofline", 180, _html, ("flop",), ("flop",),
                  points={"flop": [
    ("FLOP and bytes moved", "counted from the operators’ shapes on tensors without data; nothing is run. They count "
     "convolutions, matrix products and attention, as in published counts; one multiply-add is 2 FLOP. Bytes are each "
     "operator’s inputs and outputs once, unless a counter measured them: caches and fused operators move fewer, bad "
     "locality moves more."),
    ("Rates", "counted FLOP over time of the timing pass: a lower bound, since pointwise work is not counted."),
    ("Ceilings", "measured by probes. If a workload’s products are faster than all probes, their rate becomes the "
     "ceiling. Work on cached data can exceed the ceiling of memory: shares above 100 % are shown."),
]})
