"""The regression gate of `charact compare`: thresholds, and files for their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from charact.core.errors import UserError
from charact.core.output import show, warn

if TYPE_CHECKING:
    from charact.analysis.compare import Group
    from charact.analysis.compare.thresholds import Threshold

_MOST_EXPLAINED = 24


@dataclass(frozen=True)
class Gate:
    """Thresholds, and the files for their results."""

    thresholds: "list[Threshold]"
    summary: Path | None
    junit: Path | None
    force: bool
    allow_single: bool


def read_gate(fail_if: list[str], summary: Path | None, junit: Path | None, force: bool,
              allow_single: bool) -> Gate | None:
    """Return the requested gate; None without thresholds."""
    from charact.core.files import check_writable

    for option, path in (("--summary", summary), ("--junit", junit)):
        if path is not None and not fail_if:
            raise UserError(f'{option} writes results of thresholds: give one, as in --fail-if "time > 1.05"')
        if path is None:
            continue
        check_writable(path, force=force, option=option)
    if not fail_if:
        return None
    from charact.analysis.compare.thresholds import parse

    return Gate([parse(text) for text in fail_if], summary, junit, force, allow_single)


def pass_gate(gate: Gate, sides: "Sequence[Group]", quiet: bool) -> int:
    """Judge the thresholds, print and write their results; return 1 if a threshold failed, else 0."""
    from charact.analysis.compare.gate import has_failed, judge
    from charact.core.files import write_text
    from charact.views.export.junit import junit
    from charact.views.export.markdown import summary
    from charact.views.tables import format as fmt
    from charact.views.tables.gate_tables import gate_table, headline, sentence
    from charact.views.terminal.comparison import print_tables

    judged = judge(gate.thresholds, sides)
    if not quiet:
        print_tables([gate_table(judged, sides)])
    if gate.summary is not None:
        write_text(gate.summary, summary(judged, sides), force=gate.force)
    if gate.junit is not None:
        write_text(gate.junit, junit(judged), force=gate.force)
    failed = has_failed(judged)
    if not quiet:
        show(headline(judged))
    elif failed:
        for row in fmt.rows(judged[judged["outcome"] == "regression"]):
            warn(f"{row.case}: {sentence(row)}")
    return int(failed)


def check_repeats(gate: Gate, sides: "Sequence[Group]") -> None:
    """Check that no threshold compares two groups of one run each, except by counts."""
    from charact.analysis.compare.metrics import all_metrics

    single = [side.label for side in sides if len(side.runs) == 1 and "reference" not in side.runs[0].manifest]
    if gate.allow_single or sides[0].label not in single or len(single) == 1:
        return
    exact = {metric.name for metric in all_metrics().values() if metric.is_exact}
    if any(threshold.metric not in exact for threshold in gate.thresholds):
        raise UserError(f"{' and '.join(single[:2])} have one run each, which cannot show how much runs vary: give "
                        "directories of several runs (charact compare --ab makes them), or --allow-single")


def read_explained(sides: "Sequence[Group]") -> None:
    """Read the tables that `explain` needs."""
    from charact.analysis.compare.selection import read_parts

    for side, cases in _explained(sides):
        read_parts([sides[0], side], ["case", "phase"], cases)


def _explained(sides: "Sequence[Group]") -> "list[tuple[Group, set[str]]]":
    """Return the names of the cases of each group that differ most from the baseline."""
    from charact.analysis.compare.selection import in_pair, most_different

    places, _ = most_different(sides, _MOST_EXPLAINED)
    found = ((side, {case for case, label in places if label == side.label}) for side in sides[1:])
    return [(side, in_pair(sides, side, cases)) for side, cases in found if cases]


def explain(sides: "Sequence[Group]", num_rows: int) -> None:
    """Print what accounts for the difference of each case and group, the `num_rows` largest differences first."""
    from charact.analysis.compare.selection import most_different
    from charact.views.tables import format as fmt
    from charact.views.tables.difference_tables import NOT_TIMED, explanations
    from charact.views.terminal.comparison import print_tables

    for side, cases in _explained(sides):
        for each in explanations(sides[0], side, cases, num_rows):
            print_tables(each.tables, num_rows)
            if not each.tables:
                show(f"{each.case}: the explanation of the difference is {fmt.missing(NOT_TIMED)}")
    _, num_left = most_different(sides, _MOST_EXPLAINED)
    if num_left:
        show(f"The {_MOST_EXPLAINED} cases that differ most are explained, {num_left:,} are left out: compare fewer "
             "runs to see them")
