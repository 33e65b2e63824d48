"""A short HTML fragment of a run for notebooks: headline numbers and the share of each phase, with inline styles."""

from charact.analysis.profile.breakdown import phase_breakdown
from charact.record.reader import Run
from charact.views.html.report import render
from charact.views.sections.overview import overview
from charact.views.tables import format as fmt
from charact.views.tables import palette


def fragment(run: Run) -> str:
    """Return an HTML fragment that works anywhere: no script, no style element, no links."""
    phases = phase_breakdown(run)
    legends = {
        str(case): [(row.phase, fmt.seconds(row.time_s), fmt.share(row.share_frac), palette.PHASES[row.phase])
                    for row in fmt.rows(rows)]
        for case, rows in phases.groupby("case", sort=False)
    }
    return render("fragment.html.j2", run=run, cards=overview(run).cards, legends=legends)
