"""The HTML view: the sections of a run, and a self-contained report of one or more runs."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from charact.analysis.compare import Group
from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.profile.case_summary import iteration_times
from charact.core.errors import UserError
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html import comparison as comparing
from charact.views.html import drawing, tables_across_runs
from charact.views.html.elements.blocks import without_case
from charact.views.html.scripts import TEMPLATES, scripts
from charact.views.section import Section, all_sections
from charact.views.sections.overview import overview
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.case_names import common_facts, short_names
from charact.views.tables.model import with_footnotes, without_constants

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def _with_options(text: str) -> Markup:
    """Return HTML of a text: no line breaks within an option such as `--batch-sizes`, and backticks mark code."""
    whole = re.sub(r"--[a-z][a-z-]*", r'<span class="ch-option">\g<0></span>', str(escape(text)))
    return Markup(re.sub("`([^`]+)`", r"<code>\g<1></code>", whole))


def _together(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return the blocks in groups: those of several cases that follow each other are one, of which one is shown."""
    groups: list[list[Block]] = []
    for is_of_case, group in groupby(blocks, lambda block: block.case is not None and block.case in block.title):
        several = list(group)
        groups += [several] if is_of_case else [[block] for block in several]
    return groups


_LONG_LEAD = 150
"""Number of characters of a section's lead from which only its first sentence is open."""


def _first_sentence(lead: str) -> tuple[str, str]:
    """Return the first sentence of a long lead and the others; a short lead is one piece."""
    first, stop, others = lead.partition(". ")
    return (first + stop.strip(), others) if len(lead) > _LONG_LEAD else (lead, "")


def _sortable(value: float | str, text: str) -> str:
    """Return the value that a cell sorts by, to nine digits; nothing if it is the text of the cell."""
    return f"{value:.9g}" if isinstance(value, int | float) else "" if value == text else value


_ENVIRONMENT.filters |= {"sortable": _sortable, "first_sentence": _first_sentence,
                         "with_options": _with_options, "together": _together, "boxes": drawing.box_chart,
                         "svg": lambda chart: drawing.svg(chart), "narrow": drawing.narrow}  # which tests replace


@dataclass(frozen=True)
class DrawnSection:
    """A rendered section of the report; `html` has no scripts, style elements or external links."""

    id: str
    title: str
    html: str


def sections(run: Run, *, only_first: bool = False) -> list[DrawnSection]:
    """Return the sections of a run, in the order of the report.

    A section whose pass no case has taken is left out. Sections without data, or with a damaged table, become one
    section that lists why.

    Args:
        run: the run.
        only_first: whether to draw the first section only: the summary, in a fraction of the time.
    """
    run = presentable(run)
    shorten = _shortener(run.manifest["cases"])
    drawn: list[DrawnSection] = []
    unavailable: list[tuple[str, str]] = []
    for section in all_sections():
        if (body := _body(section, run)) is None:
            continue
        if not section.is_for_every_run and (reasons := body.reasons):
            unavailable.append((section.title, reasons))
        else:
            html = render("section.html.j2", body=body, folded=section.folded)
            drawn.append(DrawnSection(section.id, section.title, shorten(html)))
            if only_first:
                return drawn
    if unavailable:
        html = shorten(render("section.html.j2", body=Body(points=unavailable), folded="What the run lacks, and why"))
        drawn.append(DrawnSection("unavailable", "Not available", html))
    return drawn


def _shortener(cases: Iterable[dict[str, Any]]) -> Callable[[str], str]:
    """Return a function that replaces case names in HTML by short ones, at the beginning of a text or after “of”.

    Args:
        cases: entries of manifests; of several with one name, the last counts.
    """
    by_name = {case["case"]: case for case in cases}
    names = {str(escape(case)): str(escape(name)) for case, name in short_names(list(by_name.values())).items()
             if case != name}
    if not names:
        return lambda html: html
    longest_first = "|".join(re.escape(case) for case in sorted(names, key=len, reverse=True))
    begin = "|".join(f"(?<={before})" for before in (">", "of ", ": ", r"\. "))
    return lambda html: re.sub(rf"(?:{begin})({longest_first})(?=[<:, ]|\.[ <])", lambda found: names[found[1]], html)


def _body(section: Section, run: Run) -> Body | None:
    """Return the content of a section; None if the section does not apply to the run."""
    try:
        body = section.html(run) if section.belongs_to(run) else None
    except UserError as error:
        return Body(blocks=[Block(note=fmt.missing(str(error)))])
    if body is None:
        return None
    tidied = _slowest_first(_without_repetition(body, run.manifest["cases"]), run)
    return replace(tidied, blocks=[
        replace(block, table=without_constants(block.table)) if block.table else block for block in tidied.blocks])


def _slowest_first(body: Body, run: Run) -> Body:
    """Return the body with the slowest case first among blocks of several cases."""
    try:
        times = iteration_times(run).groupby("case")["wall_s"].median().to_dict()
    except UserError:  # a damaged table: the sections that need it say so
        return body
    groups = [sorted(group, key=lambda block: -times.get(block.case, 0.0)) for group in _together(body.blocks)]
    return replace(body, blocks=[block for group in groups for block in group])


def _without_repetition(body: Body, cases: Sequence[dict[str, Any]]) -> Body:
    """Return the body whose tables say long reasons once, and do not name the case if there is only one."""
    names = {case["case"] for case in cases}
    blocks = [without_case(block, *names) for block in body.blocks] if len(names) == 1 else body.blocks
    return replace(body, blocks=[
        replace(block, table=with_footnotes(block.table)) if block.table else block for block in blocks])


MAX_CASES = 8
"""Maximum number of cases that a report of several runs shows in full; the first two runs are always shown."""
_MIN_RUNS = 2

OnRun = Callable[[Run], object]
"""Function that is called after each run is read."""


def report(runs: Sequence[Run], max_cases: int = MAX_CASES, on_run: OnRun = lambda run: None) -> str:
    """Return an HTML page without external files: tables across the runs, then the sections of each run.

    One run has sections only. Of several runs, the first ones have sections: up to `max_cases` cases, but at least two
    runs. The others are only rows of the tables. Several runs are released one by one, to limit the memory.

    Args:
        runs: runs to show, in this order.
        max_cases: maximum number of cases shown in full; ignored for one run.
        on_run: called with each of several runs after it is read.
    """
    runs = [presentable(run) for run in runs]
    names = tables_across_runs.abbreviated_names([run.manifest["name"] for run in runs])
    if len(runs) == 1:
        return _page([_article(runs[0])], names)
    num_drawn = _num_drawn(runs, max_cases)
    across, articles = tables_across_runs.Summary(), []
    for number, (run, group) in enumerate(zip(runs, tables_across_runs.groups(runs), strict=True)):
        across.add(run, group)
        if number < num_drawn:
            articles.append(_article(run, group))
        run.release()
        on_run(run)
    return _page(articles, names, num_runs=len(runs), overview=across.tables(), across=across.blocks(),
                 left_out=_left_out(runs, num_drawn, f", “--max-cases {_num_cases(runs)}” those of all"))  # fmt: skip


def _num_drawn(runs: Sequence[Run], max_cases: int) -> int:
    """Return how many of the first runs are shown in full."""
    num_cases = list(accumulate(len(run.manifest["cases"]) for run in runs))
    return max(min(_MIN_RUNS, len(runs)), sum(number <= max_cases for number in num_cases))


def _left_out(runs: Sequence[Run], num_drawn: int, remedy: str = "") -> str:
    """Return a note on the runs that are not shown in full and how to show them; empty if all are."""
    if num_drawn == len(runs):
        return ""
    return (f"The sections of {len(runs) - num_drawn:,} of {len(runs):,} runs ({_num_cases(runs[num_drawn:]):,} of "
            f"{_num_cases(runs):,} cases) are left out: “charact report RUN” draws those of one run{remedy}.")


def _num_cases(runs: Sequence[Run]) -> int:
    return sum(len(run.manifest["cases"]) for run in runs)


_COMPARISON = {
    "comparison": ("Comparison", comparing.comparison),
    "differences": ("What accounts for the differences", comparing.explanations),
    "parts": ("Times of phases and operators", comparing.parts),
    "left-out": ("Left out, and what else differs", comparing.left_out),
}  # fmt: skip


def comparison_sections(sides: Sequence[Group]) -> list[DrawnSection]:
    """Return the sections of a comparison, in the order of its report."""
    cases = [case for side in sides for run in side.runs for case in run.manifest["cases"]]
    shorten = _shortener(cases)
    return [DrawnSection(name, title, shorten(render("section.html.j2", body=_without_repetition(build(sides), cases))))
            for name, (title, build) in _COMPARISON.items()]


def comparison_report(sides: Sequence[Group]) -> str:
    """Return one self-contained page: the comparison, then the sections of the first run of each group.

    Published groups have no sections. Of many groups, the first have them: up to `MAX_CASES` cases, at least two runs.
    """
    measured = [side for side in sides if "reference" not in side.runs[0].manifest]
    runs = [side.runs[0] for side in measured]
    num_drawn = _num_drawn(runs, MAX_CASES)
    compared = comparison_sections(sides)
    articles = []
    for run, side in zip(runs[:num_drawn], measured, strict=False):
        articles.append(_article(run, side.label))
        run.release()
    title = fmt.against(tables_across_runs.abbreviated([side.label for side in sides]))
    return _page(articles, title, chapters=compared, kicker="comparison", subtitle=_scripts(sides),
                 left_out=_left_out(runs, num_drawn))


def _scripts(sides: Sequence[Group]) -> str:
    """Return which script with which arguments each group ran; empty if a group ran no script, or the labels say it."""
    options = [side.runs[0].manifest["options"] for side in sides]
    if not all(each.get("script") for each in options):
        return ""
    ran = [" ".join([each["script"], *(each.get("arguments") or [])]) for each in options]
    if ran == [side.label for side in sides]:
        return ""
    return " · ".join(f"{side.label}: {command}" for side, command in zip(sides, ran, strict=True))


def chapters_report(title: str, subtitle: str, chapters: Sequence[tuple[str, str, Body]], kicker: str = "studies"
                    ) -> str:
    """Return one self-contained page of chapters.

    Args:
        title: title of the page.
        subtitle: a line below it.
        chapters: id, title and content of each.
        kicker: what the page is, in a word above its title.
    """
    drawn = [DrawnSection(name, heading, render("section.html.j2", body=body)) for name, heading, body in chapters]
    return _page([], title, chapters=drawn, kicker=kicker, subtitle=subtitle)


def _article(run: Run, group: str = "") -> dict[str, Any]:
    return {"manifest": run.manifest, "title": tables_across_runs.with_group(run.manifest["name"], group),
            "partial": run.partial, "sections": sections(run), "facts": common_facts(run.manifest["cases"])}


def _page(articles: Sequence[dict[str, Any]], title: str, **content: Any) -> str:
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    nothing = {"num_runs": len(articles), "overview": [], "across": [], "chapters": [],
               "kicker": "", "subtitle": "", "left_out": ""}
    page = render("report.html.j2", runs=articles, title=title, **{**nothing, **content}, script=Markup(scripts()),
                  style=Markup(style))  # fmt: skip
    return unbroken(page)


_UNIT = (r"%|[nµm]?s|min|h|[kMGTPE]?FLOP(?:/s|/byte)?|(?:[KMGTPE]i)?B|[kMGTPE]?B/s|[nµmkM]?[JW]|px|samples/s|tokens/s|"
         r"operations")
_TEXT_OF_PAGE = re.compile(r"<(script|style)\b.*?</\1>|>[^<]+", re.DOTALL)
_NUMBER_AND_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNIT})(?!\w))|(?<=[×±]) (?=\d)|(?<=\d) (?=±)")


def unbroken(html: str) -> str:
    """Return HTML with non-breaking spaces between numbers and their units."""
    return _TEXT_OF_PAGE.sub(lambda found: found[0] if found[1] else _NUMBER_AND_UNIT.sub("\u00a0", found[0]), html)


def render(template: str, **content: Any) -> str:
    """Render a template of this package; values are escaped."""
    return _ENVIRONMENT.get_template(template).render(content)


def fragment(run: Run) -> str:
    """Return an HTML fragment that works anywhere: no script, no style element, no links."""
    phases = phase_breakdown(run)
    legends = {
        str(case): [(row.phase, fmt.seconds(row.time_s), fmt.share(row.share_frac), palette.PHASES[row.phase])
                    for row in fmt.rows(rows)]
        for case, rows in phases.groupby("case", sort=False)
    }
    return render("fragment.html.j2", run=run, cards=overview(run).cards, legends=legends)
