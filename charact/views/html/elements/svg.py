"""Changes of matplotlib's SVG: texts of shapes that a pointer shows, and a smaller file."""

import re

_MARK, _BETWEEN = "\x1etips:", "\x1f"
"""Start and separator of texts in an id; no text of a record has these characters."""
_TITLED = re.compile(f'<g id="{_MARK}([^"]*)"(.*?)</g>', re.DOTALL)
_DOT = re.compile(r"<use ([^>]*)/>")
