"""Reading JSON files of suites and compositions, which may be untrusted."""

import json
import math
import re
import stat
from pathlib import Path
from typing import Any

from charact.core.bounded_reading import read_all
from charact.core.errors import UserError

MOST_FILE_BYTES = 256 * 2**20
"""Maximum file size (bytes); the index of 100,000 bricks takes about 40 MiB."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def file_bytes(path: Path, missing: str) -> bytes:
    """Return the content of a regular file.

    Raises:
        UserError: it is missing (message: `missing`), is not a regular file, cannot be read, or exceeds the limit.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise UserError(f"{path} is not a regular file: copy the suite again")
        with path.open("rb") as file:
            return read_all(file, path, MOST_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(missing) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UserError(f"cannot read {path} ({reason}): copy the suite again") from error


def strict_json(data: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, or contains NaN, infinity, or an unpaired surrogate, which cannot be printed.
        RecursionError: it is nested too deeply.
    """
    found = json.loads(data.decode("utf-8"), parse_constant=_raise_for_constant, parse_float=_finite)
    if _SURROGATE.search(data):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _raise_for_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
