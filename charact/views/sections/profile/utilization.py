"""The section Utilization and energy: five metrics against their ideal, and the energy of an iteration."""

import pandas as pd

from charact.analysis.common.pass_status import passes_taken
from charact.analysis.efficiency import utilization as utilization_analysis
from charact.analysis.efficiency.utilization import energy, energy_reason
from charact.record.reader import Run
from charact.views.charts import stacked_bars
from charact.views.document import Block, Body
from charact.views.figures import counters
from charact.views.html.elements.blocks import CASE, missing_cases
from charact.views.section import Section
from charact.views.tables import counter_text as words
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, table

_LEAD = (
    "Metrics against their ideal; those without a value in any case are listed below. The ideal of a share is 100 %; "
    "that of FLOP/s is the best rate of matrix products measured on this machine in the case’s precision. Each metric "
    "names its source, and whether it was measured, sampled, estimated or modelled."
)
_ENERGY_NOTE = "Energy is that of the whole device, including other processes, while the case’s iterations ran."


def _html(run: Run) -> Body:
    """Return the five metrics of each case, missing metrics with reasons, and energy."""
    used = utilization_analysis.utilization(run)
    used = used[used["case"].isin([entry.case for entry in run.entries if entry.status == "ok"])]
    missing = missing_cases(run, "counters", used["case"])
    if used.empty:
        return Body(blocks=missing)
    colors = {entry.case: palette.CASES[number % len(palette.CASES)] for number, entry in enumerate(run.entries)}
    known = used[used["value"].notna().groupby(used["metric"]).transform("any")]
    known = known.assign(name=known["metric"].map(words.counter_name), shown=[
        words.counter_value(row.metric, row.value, row.reason) for row in fmt.rows(known)])
    past = ", ".join(dict.fromkeys(known.loc[known["value_frac"] > 1, "name"]))
    columns = [
        CASE, Column("name", "Metric"), Column("shown", "Value"),
        Column("value_frac", "Of the ideal", fmt.share, "value / ideal", lambda row: row.reason),
        Column("source", "Source", reason=lambda row: "no source has it"),
        Column("method", "Method", reason=lambda row: "not known"),
    ]  # fmt: skip
    five = [Block(
        figures=[counters.five(known, colors)], table=table(known, "Five metrics against their ideal", columns),
        legend=[(case, color) for case, color in colors.items() if case in set(known["case"])],
        note=f"Above the ideal: {past}. The measured ceiling is below the hardware’s limit." if past else "",
    )] if len(known) else []  # fmt: skip
    return Body(lead=_LEAD, blocks=[*five, *_not_measured(run, used), *_energy(run, colors), *missing])


def _not_measured(run: Run, used: pd.DataFrame) -> list[Block]:
    """Return the reasons for missing metrics and energy, grouped by reason, with the number of cases."""
    lacking = used[used["value_frac"].isna()]
    num_cases = used["case"].nunique()
    points: dict[str, str] = {}
    for reason, rows in lacking.groupby("reason", sort=False):
        whole = "" if rows["value"].isna().all() else "the ideal of "
        names = ", ".join(words.counter_name(metric) for metric in rows["metric"].unique())
        lacked = rows["case"].nunique()
        text = fmt.missing(str(reason)) + ("" if lacked == num_cases else f" in {lacked} of {num_cases} cases")
        points[f"{whole}{names}"] = "; ".join(filter(None, [points.get(f"{whole}{names}"), text]))
    if (why := energy_reason(run)) is not None:
        points["energy"] = fmt.missing(why)
    columns = [Column("metric", "Metric"), Column("reason", "Reason", wide=True)]
    rows = pd.DataFrame(points.items(), columns=["metric", "reason"])
    return [Block(folded=True, table=table(rows, "Not measured", columns))] if points else []


def _energy(run: Run, colors: dict[str, str]) -> list[Block]:
    """Return energy and power as a table, with bars if there are several cases."""
    spent = energy(run)
    if spent.empty:
        return []
    columns = [
        CASE, Column("device", "Device"), Column("source", "Source"),
        Column("energy_per_iteration_j", "Energy of an iteration", words.energy, "energy of the counter pass / "
               "iterations", lambda row: row.reason),
        Column("energy_per_sample_j", "of a sample", words.energy, "energy of an iteration / batch size",
               lambda row: row.reason if pd.notna(row.reason) else str(fmt.no_samples(None))),
        Column("power_w", "Power", words.power, "mean over the counter pass", lambda row: "not read"),
    ]  # fmt: skip
    shown = table(spent, "Energy and power", columns)
    figures = [
        stacked_bars(f"Energy of {what} by case", _totals(spent, column), ("case", "case", column), colors.__getitem__,
                     f"energy of {what}", unit="J", row_px=48)
        for what, column in (("an iteration", "energy_per_iteration_j"), ("a sample", "energy_per_sample_j"))
        if spent.dropna(subset=[column])["case"].nunique() > 1
    ]  # fmt: skip
    return [Block(title="Energy", figures=figures, table=shown, note=_ENERGY_NOTE)]


def _totals(spent: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sum energy over the devices of each case; leave out cases with a device whose energy is not known."""
    return spent.groupby("case", sort=False)[column].agg(lambda joules: joules.sum(skipna=False)).dropna().reset_index()


def _has_utilization(run: Run) -> bool:
    known = utilization_analysis.utilization(run)["value"].notna().any()
    return "counters" in passes_taken(run) or bool(known)


SECTION = Section("utilization", "Utilization and energy", 190, _html, shows=_has_utilization)
