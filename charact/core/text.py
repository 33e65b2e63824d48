"""Sanitizing of untrusted text for terminals, UTF-8 files and spreadsheets; suggestions for misspelled names.

Names of layers, kernels, files and machines come from users' models and from other people's records. They can have
escape sequences, which a terminal obeys, and bytes that are not UTF-8, which no JSON, Parquet or HTML file can store.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

_DIRECTION = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Controls of text direction: they can disguise a name as another one."""
_STAND_INS = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"} | dict.fromkeys(
    (*range(0x80, 0xA0), 0x2028, 0x2029, *_DIRECTION), "\ufffd")
_STAND_INS_OF_LINES = {code: text for code, text in _STAND_INS.items() if chr(code) not in "\t\n"}
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")

T = TypeVar("T")


def printable(text: str) -> str:
    """Replace each control character except newline and tab by a visible one, e.g. ESC by ␛.

    Bidirectional controls, C1 controls and Unicode's line separators become �. The text keeps its length, unless it has
    bytes that are not UTF-8, which become hexadecimal escapes.
    """
    return valid_text(text).translate(_STAND_INS_OF_LINES)


def label(text: str) -> str:
    """Replace each control character by a visible one, including newline and tab: the result fits on one line."""
    return valid_text(text).translate(_STAND_INS)


def valid_text(text: str) -> str:
    """Return a valid UTF-8 text: bytes that are not UTF-8, as in some file names, become hexadecimal escapes."""
    try:
        # Python stores such bytes as surrogates. If its locale is not UTF-8, valid ones are among them.
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()


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
