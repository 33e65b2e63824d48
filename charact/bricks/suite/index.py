"""A suite: a directory of bricks with an index, without names, weights or order.

`suite/suite.json` holds the options of the cut and an entry for each brick, by identifier; `suite/bricks/<id>.json`
holds one brick. The sibling directory `suite.private/` holds the models' compositions (see `composition`).
"""

import hashlib
import json
import math
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import msgspec

from charact.bricks.brick import Brick, brick_from_json, brick_to_json, canonical
from charact.core.bounded_reading import read_all
from charact.core.errors import UserError
from charact.record.manifest_passes import Count

FORMAT = "charact bricks"
SCHEMA_VERSION = 1
INDEX = "suite.json"
BRICKS = "bricks"


class Entry(TypedDict):
    """Index entry of a brick."""

    kind: str
    mode: str
    """Mode of its models: `train` also for gradient sums, which have no backward pass themselves."""
    precision: str
    """Precision that it runs in, see `Brick.precision`."""
    batch_sizes: list[Count]
    """Batch sizes of the models that it was found in, ascending."""
    precisions: list[str]
    """Precisions of the models that it was found in, ascending."""
    num_layers: Count
    layer_types: list[str]
    sha256: str
    """Hash of the brick's file."""


@dataclass(frozen=True)
class Suite:
    """A validated index; bricks are read on demand."""

    path: Path
    g: int
    method: str
    torch: str
    """Version of PyTorch that captured the models; the first one for a merged or extended suite."""
    bricks: dict[str, Entry]
    digest: str
    """Hash of the index."""

    @property
    def name(self) -> str:
        """Return the name of its directory."""
        return self.path.resolve().name

    @property
    def private(self) -> Path:
        """Return the directory of the compositions."""
        return private_directory(self.path)

    def entry(self, identifier: str) -> Entry:
        """Return the index entry of a brick.

        Raises:
            UserError: the index does not contain it.
        """
        if identifier not in self.bricks:
            raise UserError(f"{self.path} has no brick {identifier}: add the model that needs it to the suite")
        return self.bricks[identifier]

    def brick(self, identifier: str) -> Brick:
        """Read a brick and check its file against the index.

        Raises:
            UserError: the brick is not in the index, or its file is missing or was changed.
        """
        entry = self.entry(identifier)
        path = brick_path(self.path, identifier)
        data = file_bytes(path, f"brick {identifier} is missing from {self.path}: copy the suite again")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise UserError(f"{path} does not match the suite's index: copy the suite again, or generate it again")
        brick: Brick = _parsed(path, data, brick_from_json)
        if brick.id != identifier:
            raise UserError(f"{path} holds brick {brick.id}: copy the suite again, or generate it again")
        return brick


def private_directory(suite: Path) -> Path:
    """Return the directory of a suite's compositions, a sibling, so that the suite can be shared without it."""
    place = suite.resolve()
    return place.with_name(f"{place.name}.private")


def brick_path(suite: Path, identifier: str) -> Path:
    """Return the path of a brick's file."""
    return suite / BRICKS / f"{identifier}.json"


def brick_bytes(brick: Brick) -> bytes:
    """Return the content of a brick's file."""
    return canonical(brick_to_json(brick)).encode()


def index_bytes(g: int, method: str, torch: str, bricks: dict[str, Entry]) -> bytes:
    """Return the content of a suite's index, sorted by identifier and with its own hash."""
    index = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "g": g, "method": method, "torch": torch,
             "bricks": {brick: bricks[brick] for brick in sorted(bricks)}}  # fmt: skip
    return json.dumps({**index, "digest": _digest(index)}, indent=1).encode()


def _digest(index: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(index).encode()).hexdigest()


def load_suite(path: Path) -> Suite:
    """Read a suite's index.

    Raises:
        UserError: the suite does not exist, is newer than this version of charact, or was changed.
    """
    file = path / INDEX
    data = file_bytes(file, f"no suite of bricks in {path}: charact bricks generate writes one")
    version, suite = _parsed(file, data, lambda index: _read(path, index))
    if version > SCHEMA_VERSION:
        raise UserError(f"{path} has schema version {version}, this charact reads up to {SCHEMA_VERSION}: update "
                        "charact")
    if suite is None:
        raise UserError(f"{file} was changed after it was written: copy the suite again, or generate it again")
    return cast(Suite, suite)


def _read(path: Path, index: Any) -> tuple[int, Suite | None]:
    """Return the schema version and the suite; None if the version is newer, or the digest differs."""
    version = index["schema_version"]
    if index["format"] != FORMAT or type(version) is not int:
        raise ValueError("it is of another format")
    given, digest = index.pop("digest", None), _digest(index)
    if version > SCHEMA_VERSION or given != digest:
        return version, None
    if any(set(entry) != set(Entry.__annotations__) for entry in index["bricks"].values()):
        raise ValueError("its index is incomplete")
    bricks = msgspec.convert(index["bricks"], dict[str, Entry])
    return version, Suite(path, msgspec.convert(index["g"], Count), str(index["method"]), str(index["torch"]), bricks,
                          digest)


def _parsed(path: Path, data: bytes, read: Callable[[Any], Any]) -> Any:
    """Parse JSON and convert it with `read`.

    Raises:
        UserError: it is not JSON, or `read` rejects it.
    """
    try:
        return read(strict_json(data))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise UserError(f"{path} is not part of a suite ({type(error).__name__}: {error}): copy the suite again, or "
                        "generate it again") from error  # fmt: skip


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
