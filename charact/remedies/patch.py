"""A unified diff of the lines that remedies change, where a constructor's call is plain."""

import ast
import difflib
import io
import os
from collections.abc import Sequence
from pathlib import Path

from charact.analysis.findings._finding import Place
from charact.remedies.remedy import Setting

_MOST_POSITIONAL = 5
"""Number of arguments by position from which one may be what a setting adds: the sixth of DataLoader is num_workers."""


def unified_diff(settings: Sequence[Setting], directory: Path) -> tuple[str, list[str]]:
    """Return a diff that adds the settings' arguments to the calls at their places, and the changes it leaves out.

    A call is plain if it is written out, with arguments by name or position alone, and changes in single lines. Places
    are relative to `directory`, that of the script; paths of the diff are relative to the working directory.
    """
    left_out = [setting.change for setting in settings if not (setting.added and setting.place)]
    by_file: dict[Path, list[tuple[Setting, Place]]] = {}
    for setting in settings:
        if setting.added and setting.place:
            by_file.setdefault(directory / setting.place.file, []).append((setting, setting.place))
    parts: list[str] = []
    for path, of_file in by_file.items():
        name = Path(os.path.relpath(path)).as_posix()
        try:  # patch and git refuse files outside of the working directory
            text = None if name.startswith("../") else path.read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            text = None
        new = text
        for setting, place in of_file:
            edited = new and _with_arguments(new, place.line, setting.change.partition("(")[0], setting.added)
            if edited:
                new = edited
            else:
                left_out.append(f"{place}: {setting.change}")
        parts += difflib.unified_diff(_lines(text or ""), _lines(new or ""), f"a/{name}", f"b/{name}")
    ends = ("" if part.endswith("\n") else "\n\\ No newline at end of file\n" for part in parts)
    return "".join(f"{part}{end}" for part, end in zip(parts, ends, strict=True)), left_out


def _lines(text: str) -> list[str]:
    """Return lines as Python counts them, with their ends: a form feed ends none."""
    return list(io.StringIO(text, newline=""))


def _with_arguments(text: str, line: int, name: str, added: str) -> str | None:
    """Return a source text with arguments added to the only call of a name at a line; None if it is not plain."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line
             and _called(node) == name]
    if len(calls) != 1 or any(keyword.arg is None for keyword in calls[0].keywords) or any(
            isinstance(argument, ast.Starred) for argument in calls[0].args):
        return None
    call = calls[0]
    if len(call.args) > _MOST_POSITIONAL:
        return None
    wanted = {part.partition("=")[0].strip(): part.strip() for part in added.split(",")}
    lines = _lines(text)
    edits = []
    for keyword in call.keywords:
        if keyword.arg in wanted:
            edits.append((keyword.lineno, keyword.col_offset, keyword.end_col_offset or 0, wanted.pop(keyword.arg)))
    if wanted:
        arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        last, column = _after_last(arguments) or (call.end_lineno or 0, (call.end_col_offset or 0) - 1)
        joined = ", ".join(wanted.values())
        edits.append((last, column, column, f", {joined}" if arguments else joined))
    for number, start, end, new in sorted(edits, reverse=True):
        # Offsets of the syntax tree count bytes. That of an end in another line gives another program.
        encoded = lines[number - 1].encode()
        lines[number - 1] = (encoded[:start] + new.encode() + encoded[end:]).decode(errors="replace")
    edited = "".join(lines)
    return edited if _differs_in_call_alone(edited, tree, call, added) else None


def _differs_in_call_alone(edited: str, tree: ast.Module, call: ast.Call, added: str) -> bool:
    """Return whether a text is a program with arguments added to a call, which is changed in its syntax tree.

    It is not where parentheses are around the last argument, or where a generator expression shares the call's.
    """
    new = {keyword.arg: keyword for keyword in _keywords(added)}
    call.keywords = [new.pop(keyword.arg, keyword) for keyword in call.keywords] + list(new.values())
    try:
        return ast.dump(ast.parse(edited)) == ast.dump(tree)
    except SyntaxError:
        return False


def _keywords(added: str) -> list[ast.keyword]:
    call = ast.parse(f"call({added})", mode="eval").body
    assert isinstance(call, ast.Call)
    return call.keywords


def _after_last(arguments: Sequence[ast.expr | ast.keyword]) -> tuple[int, int] | None:
    ends = [(each.end_lineno or 0, each.end_col_offset or 0) for each in arguments]
    return max(ends, default=None)


def _called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else (
        call.func.attr if isinstance(call.func, ast.Attribute) else None)
