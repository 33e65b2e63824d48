"""The result of `charact try`: the answer in a sentence, and a table of remedies."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.remedies.outcome_rows import outcome_rows
from charact.remedies.race import Result
from charact.views.document import Item, Line
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, Table, table

_CAPTION = "Remedies that were tried"
_ENDINGS = {"decided": "", "time": "The time was up before all were decided: --max-minutes allows more.",
            "interrupted": "Interrupted: this is what was decided so far."}


def answer(result: Result) -> str:
    """Return which remedies help and what they save together, or that none does, as a sentence."""
    rows = outcome_rows(result)
    proven = rows[rows["state"] == "proven"]
    if len(proven):
        row = next(fmt.rows(proven))
        return (f"{row.remedy} saves {_saving(row)} of an iteration: {fmt.seconds(row.iteration_s)} instead of "
                f"{fmt.seconds(result.baseline_s)}.")
    helping = rows[rows["state"].isin(["helps", "seems to help"])]
    if len(helping):
        names = ", ".join(helping["remedy"])
        return f"Nothing is recommended: {names} seemed to help, which was not proven on fresh turns."
    num_tried = int((rows["state"] != "not tried").sum())
    return f"Nothing is recommended: none of {num_tried} remed{'y' if num_tried == 1 else 'ies'} was shown to help."


def tried_table(result: Result) -> Table:
    """Return the table of all remedies, with those not tried and the baseline last."""
    rows = outcome_rows(result)
    base = pd.DataFrame([{"remedy": "unchanged", "state": "baseline", "iteration_s": result.baseline_s}])
    rows = pd.concat([rows, base], ignore_index=True) if result.baseline_s is not None else rows
    own = result.own_losses_frac

    def losses(row: Any) -> str:
        if row.state == "baseline":
            return f"differ by up to {own:.1g} from trial to trial" if own else ""
        if row.state == "not tried" or not row.num_turns:
            return ""
        if fmt.absent(row.losses_frac):
            return fmt.missing("no losses to compare")
        apart = f"{row.losses_frac:.1g}"
        return "the same" if row.losses_frac == 0 else f"differ by {apart}" if row.changes_results else f"≤ {apart}"

    shown = rows.assign(
        saves=[_saves(row) for row in fmt.rows(rows)], losses=[losses(row) for row in fmt.rows(rows)],
        memory=[_memory(row) for row in fmt.rows(rows)],
        time=["" if fmt.absent(row.iteration_s) else fmt.seconds(row.iteration_s) for row in fmt.rows(rows)],
        code=[_code(row) for row in fmt.rows(rows)])
    return table(shown, _CAPTION, [
        Column("remedy", "Remedy"), Column("time", "Iteration", meaning="mean time"),
        Column("saves", "Saves", meaning="of the baseline's mean iteration, with its 95 % interval"),
        Column("memory", "Memory", meaning="added to the peak of the process"),
        Column("losses", "Losses", meaning="largest relative difference of the first ten"),
        Column("code", "Change in your code", wide=True)])


def items(result: Result, written: Sequence[str]) -> list[Item]:
    """Return what the terminal prints."""
    lines: list[Item] = [Line((answer(result), "strong")), Line(), tried_table(result)]
    if ending := _ENDINGS[result.ending]:
        lines.append(Line((ending, "dim")))
    if written:
        names = ", ".join(written[:10]) + (f" and {len(written) - 10} more" if len(written) > 10 else "")
        lines.append(Line(f"The trials wrote or changed: {names}. --scratch runs them in a copy of the directory."))
    return lines


def _saving(row: Any) -> str:
    if fmt.absent(row.low_frac):
        return fmt.share(row.saves_frac)
    return f"{fmt.share(row.saves_frac)} ({100 * row.low_frac:.1f} to {100 * row.high_frac:.1f})"


def _saves(row: Any) -> str:
    if row.state == "baseline":
        return ""
    if row.state in ("not tried", "failed"):
        return f"{row.state}: {row.reason}"
    if row.state == "slower":
        return f"slower by {fmt.share(-row.saves_frac)}"
    text = _saving(row) if not fmt.absent(row.saves_frac) else ""
    return text if row.state in ("proven", "helps") else f"{row.state}: {text}" if text else str(row.state)


def _memory(row: Any) -> str:
    if fmt.absent(row.added_bytes):
        return ""
    sign = "+" if row.added_bytes > 0 else "−"
    return "0" if abs(row.added_bytes) < 2**20 else f"{sign}{fmt.num_bytes(abs(row.added_bytes))}"


def _code(row: Any) -> str:
    if row.state in ("not tried", "baseline") or not isinstance(row.change, str):
        return ""
    return f"{row.place} {row.change}" if isinstance(row.place, str) else str(row.change)
