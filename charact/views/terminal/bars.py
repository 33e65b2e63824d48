"""Stacked bars for the terminal, in color or in letters, and sparklines."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from charact.views.tables import format as fmt

_WIDEST_BAR = 100
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDEST_SPARKLINE = 20


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar: its name, its share of the whole, its amount as text, its color."""

    name: str
    share_frac: float
    amount: str
    color: str


@dataclass(frozen=True)
class Bar:
    """A stacked bar above its legend; without color, letters replace the colors."""

    label: str
    parts: list[Part]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the bar as wide as the console allows, up to a limit, then the legend, wrapped between its entries."""
        plain = console.no_color or console.color_system is None
        letters = _letters([part.name for part in self.parts])
        widths = _whole_cells([part.share_frac for part in self.parts], min(options.max_width, _WIDEST_BAR))
        bar, entries = Text(no_wrap=True), []
        for part, letter, width in zip(self.parts, letters, widths, strict=True):
            bar.append((letter if plain else "█") * width, style=part.color)
            mark = f"{letter} " if plain else "■ "
            share = (fmt.share(part.share_frac), "dim")
            entries.append(Text.assemble((mark, part.color), (part.name, "bold"), f" {part.amount} ", share))
        yield Text(self.label)
        yield bar
        yield from _wrapped(entries, options.max_width)


def sparkline(values: Sequence[float]) -> str:
    """Return a character per value, scaled between the lowest and the highest; many values are thinned out."""
    known = [value for value in values if not fmt.absent(value)]
    if not known:
        return ""
    step = max(1, -(-len(known) // _WIDEST_SPARKLINE))
    low, span = min(known), (max(known) - min(known)) or 1.0
    # Counted from the end: the last value is always shown.
    return "".join(_LEVELS[round((value - low) / span * (len(_LEVELS) - 1))] for value in known[::-step][::-1])


def _letters(names: list[str]) -> list[str]:
    """Return a letter for each name, distinct if possible."""
    letters: list[str] = []
    for name in names:
        candidates = [letter for letter in f"{name.upper()}ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter.isalpha()]
        letters.append(next((letter for letter in candidates if letter not in letters), "#"))
    return letters


def _whole_cells(shares: list[float], width: int) -> list[int]:
    """Return the number of cells of each share of a bar; they sum to the width."""
    ends = [round(width * sum(shares[: number + 1])) for number in range(len(shares))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _wrapped(entries: list[Text], width: int) -> list[Text]:
    """Arrange entries in lines, three spaces apart, wrapped between entries only."""
    lines = [Text()]
    for entry in entries:
        if lines[-1] and len(lines[-1]) + 3 + len(entry) > width:
            lines.append(Text())
        lines[-1].append_text(Text("   " if lines[-1] else "")).append_text(entry)
    return lines
