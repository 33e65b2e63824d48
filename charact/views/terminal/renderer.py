"""The terminal's renderer of the document: lines, bars, tables and cards, drawn by rich."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from charact.core import console as own
from charact.core.output import show
from charact.views.charts import ink_on
from charact.views.document import Answer, Chapter, Item, Line, Lines, Numbers, ShareBar
from charact.views.tables import format as fmt
from charact.views.tables.case_names import shared_end
from charact.views.tables.model import Cell, Column, Row, Table, with_footnotes
from charact.views.terminal.fitted_table import FittedTable, empty_table

_STYLES = {"strong": "bold", "warning": "yellow", "failure": "bold red", "good": "green", "place": "cyan"}
"""Styles of the tones that have another name in rich."""
_VERDICTS = {"slower": "red", "faster": "green"}
"""Styles of verdicts. Others have none: whether they are good depends on the metric."""
_WIDEST_BAR = 100
_ANY_WIDTH = 10_000
_INDENT = 2
_GAP = 2


def drawn(item: Item) -> RenderableType:
    """Return what rich draws for an item of the document.

    The console decides about color: without it (a pipe, NO_COLOR) bars are drawn in letters.
    """
    match item:
        case Line():
            return Hanging(Text.assemble(*((text, _STYLES.get(tone, tone)) for text, tone in item.spans)))
        case ShareBar():
            return _DrawnBar(item)
        case Answer():
            return Group(*map(drawn, _answer_lines(item)))
        case Lines():
            return Group(*map(drawn, item.items))
        case Numbers():
            return _numbers(item)
        case Table():
            return _DrawnTable(item)
        case Chapter():
            first, *others = (drawn(each) for each in item.items)
            return Group(Text(), Rule(Text(item.title, style="bold"), align="left", style="dim"),
                         Padding(first, (0, 0, 0, _INDENT)), *(Padding(each, (1, 0, 0, _INDENT)) for each in others))
    return item


def print_items(items: Sequence[Item]) -> None:
    """Print items of the document; into a pipe, each text and row is one uncolored line of any length."""
    console = own.Console(highlight=False)
    if console.is_terminal:
        console.print(drawn(Lines(items)))
        return
    captured = io.StringIO()
    own.Console(file=captured, width=_ANY_WIDTH, color_system=None, force_terminal=False).print(drawn(Lines(items)))
    show(*(line.rstrip() for line in captured.getvalue().removesuffix("\n").split("\n")))


def _answer_lines(answer: Answer) -> Iterator[Line]:
    """Yield the sentence, and for each action its cause, remedy, saving and place, the command on a line of its own."""
    yield Line((answer.sentence, "strong"))
    yield from [Line()] if answer.actions else []
    for number, action in enumerate(answer.actions, 1):
        cases = f" in {', '.join(action.cases)}" if action.cases else ""
        yield Line(f"{number}. ", (action.cause, "strong"), (cases, "dim"))
        if action.saving:
            yield Line("   saves ", (action.saving, "good"))
        if action.place:
            yield Line((f"   {action.place}", "place"))
        yield from (Line((f"   {text}", "dim")) for text in action.evidence)
        yield Line(f"   → {action.remedy}")
        if action.command:
            yield Line((f"   {action.command}", "place"))
    if answer.more:
        yield Line()
        yield Line((answer.more, "dim"))
    yield Line()


@dataclass(frozen=True)
class Hanging:
    """A text with a hanging indent, so that one sees where the next text begins."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the text, wrapped to the width that is left."""
        first, *rest = self.text.wrap(console, max(options.max_width - _INDENT, 1))
        yield first
        yield from (Text(" " * _INDENT).append_text(line) for line in rest)


@dataclass(frozen=True)
class _DrawnBar:
    """A stacked bar above its legend; each part begins with a letter, which fills it if there is no color.

    A terminal of 16 colors draws several parts in one color: their letters differ.
    """

    bar: ShareBar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = console.no_color or console.color_system is None
        width, shares = min(options.max_width, _WIDEST_BAR), [part.share_frac for part in self.bar.parts]
        ends = [round(width * sum(shares[:number])) for number in range(len(shares) + 1)]
        strip, lines, letters = Text(no_wrap=True), [Text()], list[str]()
        for part, start, end in zip(self.bar.parts, ends[:-1], ends[1:], strict=True):
            candidates = [letter for letter in f"{part.name.upper()}ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.isalpha()]
            letters.append(next((letter for letter in candidates if letter not in letters), "#"))
            label = "" if plain else f"{ink_on(part.color)} on {part.color}"
            strip.append(letters[-1] * min(end - start, 1), style=label)
            strip.append((letters[-1] if plain else "█") * (end - start - 1), style=part.color)
            entry = Text.assemble((letters[-1], label), " ", (part.name, "bold"), f" {part.amount} ",
                                  (fmt.share(part.share_frac), "dim"))
            if lines[-1] and len(lines[-1]) + 3 + len(entry) > options.max_width:
                lines.append(Text())
            lines[-1].append_text(Text("   " if lines[-1] else "")).append_text(entry)
        yield from (Text(self.bar.title), strip, *lines)


def _numbers(item: Numbers) -> Group:
    """Return the first column and the columns `names`; a column that lacks all its numbers becomes a line below."""
    titles = [column.name for column in item.table.columns]
    places = [titles.index(name) for name in item.names or titles[1:] if name in titles]
    reasons: dict[str, list[str]] = {}
    for place in places[1:]:
        texts = {row.cells[place].text for row in item.table.rows}
        if len(texts) == 1 and fmt.reason_of(text := texts.pop()) is not None:
            reasons.setdefault(text, []).append(item.table.columns[place].title)
    missing = [title for titles in reasons.values() for title in titles]
    places = [0, *(place for place in places if item.table.columns[place].title not in missing)]
    rows = [replace(row, cells=[row.cells[place] for place in places]) for row in item.table.rows]
    shown = with_footnotes(replace(item.table, rows=rows), min_cells=1)
    table = _NamedTable([item.table.columns[place].title for place in places], [
        [_cell(cell, "bold" if item.strong and number == 1 else "") for number, cell in enumerate(row.cells)]
        for row in shown.rows])
    lines = [f"{', '.join(columns)}: {text}" for text, columns in reasons.items()]
    lines += [shown.note] if shown.note else []
    return Group(table, *(Hanging(Text(line, style="dim")) for line in lines))


def _cell(cell: Cell, style: str = "") -> Text:
    if cell.spans:
        return Text.assemble(*cell.spans)
    return Text(cell.text, style="bold red" if cell.fault else style)


@dataclass(frozen=True)
class _DrawnTable:
    """A table with its caption and note.

    One that is wider than the screen is split by case, if cases have several rows. Otherwise, its cases lose the end
    that all of them share, if it fits then.
    """

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, rows = self.table.columns, self.table.rows
        if self.table.caption:
            yield Text(self.table.caption, style="bold")
        place = next((place for place, column in enumerate(columns) if column.name == "case"), None)
        cases = list(dict.fromkeys(row.case for row in rows))
        if place is not None and len(cases) < len(rows) and _width(columns, rows) > options.max_width:
            for case in cases:
                of_case = [replace(row, cells=[*row.cells[:place], *row.cells[place + 1:]])
                           for row in rows if row.case == case]
                yield from (Text(str(case), style="underline"),
                            _fitted([*columns[:place], *columns[place + 1:]], of_case))
        else:
            table = _fitted(columns, rows)
            if place is not None and table.least_width > options.max_width:
                shorter = _without_shared_end(table, place)
                table = shorter if shorter.least_width <= options.max_width else table
            yield table
        if self.table.note:
            yield Hanging(Text(self.table.note, "dim"))


def _width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Return the width of the longest cells side by side, in characters."""
    texts = [[column.title for column in columns], *([cell.text for cell in row.cells] for row in rows)]
    return sum(max(map(cell_len, texts_of_column)) + _GAP for texts_of_column in zip(*texts, strict=True)) - _GAP


def _fitted(columns: Sequence[Column], rows: Iterable[Row]) -> FittedTable:
    return FittedTable([column.title for column in columns],
                       [[_cell(cell, _VERDICTS.get(cell.text, "")) for cell in row.cells] for row in rows],
                       [column.to_text is not None for column in columns])


def _without_shared_end(table: FittedTable, place: int) -> FittedTable:
    """Return a table whose column of cases has the end that all cases share, in its title alone."""
    names = [row[place].plain for row in table.rows]
    end = shared_end(names)
    if not end:
        return table
    titles = [f"{title} (all end in {end})" if number == place else title for number, title in enumerate(table.titles)]
    rows = [[cell[:-len(end)] if number == place else cell for number, cell in enumerate(row)] for row in table.rows]
    return replace(table, titles=titles, rows=rows)


class _NamedTable:
    """Rows of a name and numbers.

    If the screen is too narrow for both, each name is on a line above its numbers. If the numbers alone are too wide,
    each is on a line next to its title.
    """

    def __init__(self, titles: Sequence[str], rows: Iterable[Sequence[Text]]) -> None:
        self._name_title, *self._titles = titles
        self._rows = [(name, cells) for name, *cells in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """Draw the widest form that fits."""
        def fits(table: RichTable, width: int) -> bool:
            return console.measure(table, options=options.update(max_width=_ANY_WIDTH)).maximum <= width

        side_by_side, numbers = self._table(named=True), self._table(named=False)
        if fits(side_by_side, options.max_width):
            yield side_by_side
        elif fits(numbers, options.max_width - _INDENT):
            header, *lines = console.render_lines(Padding(numbers, (0, 0, 0, _INDENT)), options, pad=False)
            yield from [*header, Segment.line()]
            for (name, _), line in zip(self._rows, lines, strict=True):
                yield name
                yield from [*line, Segment.line()]
        else:
            for name, cells in self._rows:
                table = empty_table(show_header=False)
                table.add_column(style="dim", no_wrap=True)
                table.add_column()
                for title, cell in zip(self._titles, cells, strict=True):
                    table.add_row(Text(title), cell)
                yield name
                yield Padding(table, (0, 0, 0, _INDENT))

    def _table(self, *, named: bool) -> RichTable:
        table = empty_table()
        for title in [*([self._name_title] if named else []), *self._titles]:
            table.add_column(Text(title), justify="left" if title is self._name_title else "right", no_wrap=True)
        for name, cells in self._rows:
            table.add_row(*([name] if named else []), *cells)
        return table
