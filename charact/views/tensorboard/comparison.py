"""Runs side by side: the comparison of the report, each run being a side."""

from collections.abc import Sequence

from charact.analysis.compare import Side
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.html.report import comparison_sections

_NUM_LETTERS = 26


def comparison(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Sections as {id, title, html}, the first run being the baseline; sides have the letters that the tab gives."""
    runs = [presentable(run) for run in runs]
    sides = [Side(f"{_letter(number)} {run.manifest['name']}", (run,)) for number, run in enumerate(runs)]
    return [{"id": part.id, "title": part.title, "html": part.html} for part in comparison_sections(sides)]


def _letter(number: int) -> str:
    """The tab's letter; they begin again after Z, here with a number, since sides must differ."""
    again, position = divmod(number, _NUM_LETTERS)
    return chr(ord("A") + position) + (str(again + 1) if again else "")
