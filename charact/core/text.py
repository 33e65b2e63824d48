"""Sanitizing of untrusted text for terminals, UTF-8 files and spreadsheets; suggestions for misspelled names.

Names of layers, kernels, files and machines come from users' models and from other people's records. They can have
escape sequences, which a terminal obeys, and bytes that are not UTF-8, which no JSON, Parquet or HTML file can store.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

_ORDER = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Controls of text direction: they can disguise a name as another one."""
_CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_ORDER}]")
_LINE_CONTROLS = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_ORDER}]")
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")

T = TypeVar("T")


def printable(text: str) -> str:
    """Replace each control character except newline and tab by a visible one, e.g. ESC by ␛.

    Bidirectional controls, C1 controls and Unicode's line separators become �. The text keeps its length, unless it has
    bytes that are not UTF-8, which become hexadecimal escapes.
    """
    return _CONTROLS.sub(_stand_in, valid_text(text)) if _CONTROLS.search(text) else text


def label(text: str) -> str:
    """Replace each control character by a visible one, including newline and tab: the result fits on one line."""
    return _LINE_CONTROLS.sub(_stand_in, valid_text(text)) if _LINE_CONTROLS.search(text) else text


def _stand_in(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\ufffd"


def valid_text(text: str) -> str:
    """Return a valid UTF-8 text: bytes of a file's name that are not UTF-8 become hexadecimal escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            # Python stores such bytes as surrogates. If its locale is not UTF-8, valid ones are among them.
            found = text.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            found = text.encode(errors="backslashreplace")
        return found.decode(errors="backslashreplace")
    return text


def valid_values(value: T) -> T:
    """Return a JSON value with every text in it, including keys, made valid UTF-8: itself if all texts are valid."""
    import msgspec  # here: it takes a tenth of the time of `charact --help`

    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError):  # TypeError: keys or values that JSON has not, which _mapped keeps
        return cast(T, _mapped(value, valid_text))
    return value


def labels(value: T) -> T:
    """Copy a JSON value with `label` applied to every text in it, including keys."""
    return cast(T, _mapped(value, label))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value


def spreadsheet_text(text: str) -> str:
    """Prefix an apostrophe to a text that a spreadsheet would run as a formula.

    A text that already begins with apostrophes before such a character gets another, so that the prefix is reversible.

    *Source*: OWASP, "CSV Injection".
    """
    return f"'{text}" if _FORMULA.match(text) else text


def did_you_mean(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return "did you mean ...?" with up to three similar names, ignoring case; without any, `otherwise`."""
    by_lower = {each.lower(): each for each in reversed(list(names))}
    near = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    return f"did you mean {', '.join(near)}?" if near else otherwise
