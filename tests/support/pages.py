"""Reading pages of HTML: their elements, texts and table rows."""

import re
from html.parser import HTMLParser

from charact.record.reader import Run
from charact.views.html.report import sections

HOSTILE = """<script>alert('x"&y')</script>$\\frac{1}{2}$"""
"""Text that would be obeyed if it were not escaped."""
VOID = {"img", "meta", "link", "rect", "br", "path", "use", "input"}


class Page(HTMLParser):
    """Elements and texts of a page; tells where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.replace("\N{NO-BREAK SPACE}", " ")


def words_of(run: Run) -> dict[str, str]:
    return words_in({part.id: part.html for part in sections(run)})


def words_in(html: dict[str, str]) -> dict[str, str]:
    """Words of each section, of which the HTML is given."""
    spaced = {name: re.sub(r"</(dt|td|th|h3)>", r"\g<0> ", section) for name, section in html.items()}
    texts = {name: " ".join(Page(html).words.split()) for name, html in spaced.items()}
    return {name: text.replace("\N{NO-BREAK SPACE}", " ") for name, text in texts.items()}


def row_of(html: str, caption: str, *starts: str) -> list[str]:
    """Cells of the first row of a table that begins with the cells given."""
    table = html[html.index(f"<caption>{caption}") :].split("</table>")[0]
    for row in table.split("<tr")[1:]:
        cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        if cells and cells[: len(starts)] == list(starts):
            return cells
    raise AssertionError(f"{caption} has no row {starts}")
