"""Reading the JSON files of suites and compositions, which may come from anybody."""

import json
import math
import re
import stat
from pathlib import Path
from typing import Any

from charact.core.bounded_reading import read_all
from charact.core.errors import UserError

MOST_FILE_BYTES = 256 * 2**20
"""Largest file that is read; the index of 100,000 bricks takes about 40 MiB."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def file_bytes(path: Path, missing: str) -> bytes:
    """Content of a regular file.

    Raises:
        UserError: it is missing (message: `missing`), is no regular file, cannot be read, or exceeds the limit.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its other end
            raise UserError(f"{path} is no regular file: copy the suite again")
        with path.open("rb") as file:
            return read_all(file, path, MOST_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(missing) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UserError(f"cannot read {path} ({reason}): copy the suite again") from error


def strict_json(data: bytes) -> Any:
    """What JSON text holds.

    Raises:
        ValueError: it is no JSON, holds NaN or infinity, or half of a surrogate pair, which nothing can print.
        RecursionError: it is nested too deeply.
    """
    found = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    if _SURROGATE.search(data):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
