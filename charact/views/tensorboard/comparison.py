"""Comparison of runs in the tab: each run is a group of its own."""

from collections.abc import Sequence

from charact.analysis.compare import Group
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.html.report import comparison_sections, unbroken

_NUM_LETTERS = 26


def comparison(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return sections as {id, title, html}; the first run is the baseline, and labels have the tab's letters."""
    runs = [presentable(run) for run in runs]
    sides = [Group(f"{_letter(number)} {run.manifest['name']}", (run,)) for number, run in enumerate(runs)]
    return [{"id": part.id, "title": part.title, "html": unbroken(part.html)} for part in comparison_sections(sides)]


def _letter(number: int) -> str:
    """Return the tab's letter; after Z letters repeat with a number, since labels must be distinct."""
    again, position = divmod(number, _NUM_LETTERS)
    return chr(ord("A") + position) + (str(again + 1) if again else "")
