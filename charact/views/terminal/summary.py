"""Terminal summary of a run: headline numbers, and bars of time and memory."""

from rich.console import Group, RenderableType
from rich.text import Text

from charact.analysis.profile.case_summary import case_summary
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.case_kind import by_kind
from charact.views.tables import format as fmt
from charact.views.terminal.case_lines import failure
from charact.views.terminal.findings import finding_lines


def summary(run: Run) -> RenderableType:
    """Return the summary of all cases of a run: headline numbers, bars of each case, and failures with their reasons.

    The console decides about color: without it (a pipe, NO_COLOR) bars are drawn in letters.
    """
    run = presentable(run)
    cases = case_summary(run)
    if cases.empty:
        return Text(f"{run.run_id}: {fmt.no_cases(run.partial)}")
    kinds = by_kind(cases)
    blocks = [block for kind, rows in kinds for block in kind.headlines(run, rows)]
    blocks += [failure(case) for kind, rows in kinds if not kind.shows_failures
               for _, case in rows[rows["status"] != "ok"].iterrows()]  # fmt: skip
    return Group(*finding_lines(run), *blocks, *(block for kind, rows in kinds for block in kind.details(run, rows)))
