"""Rich console that shows control characters and markup in names as plain text."""

from collections.abc import Iterable
from typing import IO, Any, cast

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from charact.core.output import ERR, OUT
from charact.core.text import printable


class Console(rich.console.Console):
    """A console on standard output that replaces control characters by visible ones."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(file=file or cast(IO[str], ERR if stderr else OUT), markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments with printable text; rich's own control codes are kept."""
        if isinstance(renderable, Text) and (shown := printable(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = shown  # before layout: a replacement takes a column
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
