"""A unified diff of the lines that remedies change, where a constructor's call is plain."""

import ast
import difflib
from collections.abc import Sequence
from pathlib import Path

from charact.remedies.remedy import Setting


def unified_diff(settings: Sequence[Setting], directory: Path) -> tuple[str, list[str]]:
    """Return a diff that adds the settings' arguments to the calls at their places, and the changes it leaves out.

    A call is plain if it is written out, with arguments by name or position alone. Paths are relative to `directory`.
    """
    left_out = [setting.change for setting in settings if not setting.added]
    by_file: dict[str, list[Setting]] = {}
    for setting in settings:
        if setting.added and setting.place is not None:
            by_file.setdefault(setting.place.file, []).append(setting)
        elif setting.added:
            left_out.append(setting.change)
    parts: list[str] = []
    for name, of_file in by_file.items():
        try:
            text = (directory / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            left_out += [f"{setting.place}: {setting.change}" for setting in of_file]
            continue
        new = text
        for setting in sorted(of_file, key=lambda each: -(each.place.line if each.place else 0)):
            assert setting.place is not None
            edited = _with_arguments(new, setting.place.line, setting.change.partition("(")[0], setting.added)
            if edited is None:
                left_out.append(f"{setting.place}: {setting.change}")
            else:
                new = edited
        parts += difflib.unified_diff(text.splitlines(keepends=True), new.splitlines(keepends=True),
                                      f"a/{name}", f"b/{name}")
    return "".join(parts), left_out


def _with_arguments(text: str, line: int, name: str, added: str) -> str | None:
    """Return a source text with arguments added to the only call of a name at a line; None if it is not plain."""
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.lineno == line
                 and _called(node) == name]
    except SyntaxError:
        return None
    if len(calls) != 1 or any(keyword.arg is None for keyword in calls[0].keywords) or any(
            isinstance(argument, ast.Starred) for argument in calls[0].args):
        return None
    call = calls[0]
    wanted = {part.partition("=")[0].strip(): part.strip() for part in added.split(",")}
    lines = text.splitlines(keepends=True)
    edits = []
    for keyword in call.keywords:
        if keyword.arg in wanted:
            edits.append((keyword.lineno, keyword.col_offset, keyword.end_lineno or 0, keyword.end_col_offset or 0,
                          wanted.pop(keyword.arg)))
    if wanted:
        last_line, last_column = call.end_lineno or 0, (call.end_col_offset or 0) - 1
        arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        place = _after_last(arguments) or (last_line, last_column)
        joined = ", ".join(wanted.values())
        edits.append((*place, *place, f", {joined}" if arguments else joined))
    for first, start, last, end, new in sorted(edits, reverse=True):
        if first != last:
            return None
        # Offsets of the syntax tree count bytes.
        encoded = lines[first - 1].encode()
        lines[first - 1] = (encoded[:start] + new.encode() + encoded[end:]).decode()
    return "".join(lines)


def _after_last(arguments: Sequence[ast.expr | ast.keyword]) -> tuple[int, int] | None:
    ends = [(each.end_lineno or 0, each.end_col_offset or 0) for each in arguments]
    return max(ends, default=None)


def _called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else (
        call.func.attr if isinstance(call.func, ast.Attribute) else None)
