"""Text from others, made fit for a terminal, for UTF-8 files and for spreadsheets.

Names of layers, kernels, files and machines come from users' models and from other people's records. They can hold
escape sequences, which a terminal obeys, and bytes that are not UTF-8, which no JSON, Parquet or HTML file can hold.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

_ORDER = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Controls of the direction of text: they make a name look like another one."""
_CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_ORDER}]")
_LINE_CONTROLS = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_ORDER}]")
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")

T = TypeVar("T")


def printable(text: str) -> str:
    """Replace each control character but newline and tab by a visible one, e.g. ESC by ␛, so that none takes effect.

    Bidirectional controls, C1 controls and Unicode's line separators become �. The text keeps its length, unless it
    holds bytes that are not UTF-8, which become escapes in hexadecimal.
    """
    return _CONTROLS.sub(_stand_in, valid_text(text)) if _CONTROLS.search(text) else text


def label(text: str) -> str:
    """Replace each control character by a visible one, newline and tab included: what is left fills one line."""
    return _LINE_CONTROLS.sub(_stand_in, valid_text(text)) if _LINE_CONTROLS.search(text) else text


def _stand_in(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\ufffd"


def valid_text(text: str) -> str:
    """Text that UTF-8 can hold: bytes of a file's name that are not UTF-8 become hexadecimal escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            # Python holds such bytes as surrogates. Where its locale is not UTF-8, valid ones are among them.
            found = text.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            found = text.encode(errors="backslashreplace")
        return found.decode(errors="backslashreplace")
    return text


def valid_values(value: T) -> T:
    """Copy what JSON can hold, with every text in it, keys included, made valid UTF-8."""
    return cast(T, _mapped(value, valid_text))


def labels(value: T) -> T:
    """Copy what JSON can hold, with every text in it, keys included, as `label` gives it."""
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
    """Put an apostrophe before a text that a spreadsheet would run as a formula.

    One that begins with apostrophes before such a character gets another, so that taking one away always gives the
    text back.

    *Source*: OWASP, "CSV Injection".
    """
    return f"'{text}" if _FORMULA.match(text) else text
