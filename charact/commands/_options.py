"""Reading lists and ranges from options."""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from charact.errors import UserError

if TYPE_CHECKING:
    from charact.workload import Synthetic

_MAX_SIZES = 10_000
_LARGEST = 10**9
_SYNTHETIC_RANGES: dict[str, tuple[int, int] | tuple[float, float]] = {
    "classes": (1, 10**7),
    "vocabulary": (4, 10**7),  # the marks of a text are up to three words of it
    "zipf": (0.0, 100.0),
    "length-mean": (0.001, 1.0),
    "length-spread": (0.0, 1.0),
}


def parse_sizes(text: str, option: str) -> list[int]:
    """Positive whole numbers from `32,224` or, with the end included, a range `32:224:32`; each once, in order.

    Raises:
        UserError: a number is zero, negative or none, the list is empty, or a range goes nowhere.
    """
    sizes: list[int] = []
    for part in _parts(text, option):
        sizes += _range(part, option) if ":" in part else [_positive(part, option)]
    return list(dict.fromkeys(sizes))


def parse_choices(text: str, option: str, choices: Collection[str]) -> list[str]:
    """Words from a comma-separated list, each one of the choices; each once, in order.

    Raises:
        UserError: a word is none of the choices, or the list is empty.
    """
    words = parse_list(text, option)
    for word in words:
        if word not in choices:
            raise UserError(f"{option}: '{word}' is not one of {', '.join(choices)}")
    return words


def parse_choice(text: str, option: str, choices: Collection[str]) -> str:
    """The one word that an option takes.

    Raises:
        UserError: it is none of the choices.
    """
    if text not in choices:
        raise UserError(f"{option}: '{text}' is not one of {', '.join(choices)}")
    return text


def parse_list(text: str, option: str) -> list[str]:
    """Words from a comma-separated list; each once, in order.

    Raises:
        UserError: the list or a place in it is empty.
    """
    return list(dict.fromkeys(_parts(text, option)))


def parse_synthetic(text: str) -> "Synthetic":
    """What made-up data are to look like, from `classes=100,zipf=1.2`; what is not named keeps its default.

    Raises:
        UserError: a key is unknown or repeated, or its value is no number or out of its range.
    """
    from charact.data.synthetic import KEYS
    from charact.workload import Synthetic

    values: dict[str, Any] = {}
    for part in _parts(text, "--synthetic"):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in KEYS:
            raise UserError(f"--synthetic: '{key}' is not one of {', '.join(KEYS)}")
        if KEYS[key] in values:
            raise UserError(f"--synthetic: {key} is given twice: remove one")
        values[KEYS[key]] = _synthetic_number(key, value)
    return Synthetic(**values)


def _synthetic_number(key: str, text: str) -> int | float:
    smallest, largest = _SYNTHETIC_RANGES[key]
    whole = isinstance(smallest, int)
    try:
        number = int(text) if whole else float(text)
    except ValueError as error:
        raise UserError(f"--synthetic {key}: '{text[:40]}' is no {'whole ' if whole else ''}number "
                        f"(as in {key}={smallest})") from error
    if not smallest <= number <= largest:
        raise UserError(f"--synthetic {key}: {text[:40]} is not from {smallest:,} to {largest:,}")
    return number


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UserError(f"{option} is empty: give at least one value")
    if not all(parts):
        raise UserError(f"{option} '{text}' has an empty place between commas: remove it")
    return parts


def _positive(text: str, option: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,1000}", text):
        raise UserError(f"{option}: '{text}' is not a whole number (as in 32,224 or 32:224:32)")
    if int(text) < 1:
        raise UserError(f"{option}: {text} is not positive")
    if int(text) > _LARGEST:
        raise UserError(f"{option}: {text} is too large (at most {_LARGEST:,})")
    return int(text)


def _range(text: str, option: str) -> list[int]:
    numbers = text.split(":")
    if len(numbers) != 3:
        raise UserError(f"{option}: '{text}' is not a range; write start:end:step, as in 32:224:32")
    start, end, step = (_positive(number, option) for number in numbers)
    if end < start:
        raise UserError(f"{option}: range {text} ends before it starts")
    if (end - start) // step >= _MAX_SIZES:
        raise UserError(f"{option}: range {text} has over {_MAX_SIZES} values: choose a larger step")
    return list(range(start, end + 1, step))
