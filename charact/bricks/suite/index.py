"""A suite: a directory of bricks with an index, without names, weights or order.

`suite/suite.json` says what the bricks were cut with, and a line on each, by identifier; `suite/bricks/<id>.json` is
one brick. Beside it, `suite.private/` says which bricks make which model (see `composition`).
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from charact.bricks.brick import Brick, canonical
from charact.bricks.suite.brick_file import brick_from_json, brick_to_json
from charact.bricks.suite.json_files import file_bytes, strict_json
from charact.core.errors import UserError

FORMAT = "charact bricks"
SCHEMA_VERSION = 1
INDEX = "suite.json"
BRICKS = "bricks"


class Entry(TypedDict):
    """What the index says of a brick."""

    kind: str
    mode: str
    """Of the models that it stands in: `train` also of sums of gradients, which have no backward pass themselves."""
    precision: str
    """That it runs in, see `Brick.precision`."""
    batch_sizes: list[int]
    """Of the models that it was found in, ascending."""
    precisions: list[str]
    """Of those models, likewise."""
    num_layers: int
    layer_types: list[str]
    sha256: str
    """Of the brick's file."""


@dataclass(frozen=True)
class Suite:
    """An index that was read and is whole; bricks are read when they are asked for."""

    path: Path
    g: int
    method: str
    torch: str
    """Version of PyTorch that captured the models; of a suite that was merged or extended, the first one's."""
    bricks: dict[str, Entry]
    digest: str
    """Hash of the index."""

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.path.resolve().name

    @property
    def private(self) -> Path:
        """Directory of the compositions."""
        return private_directory(self.path)

    def entry(self, identifier: str) -> Entry:
        """What the index says of a brick.

        Raises:
            UserError: it says nothing.
        """
        if identifier not in self.bricks:
            raise UserError(f"{self.path} has no brick {identifier}: extend the suite by the model that needs it")
        return self.bricks[identifier]

    def brick(self, identifier: str) -> Brick:
        """Read a brick, and check that it is what the index says.

        Raises:
            UserError: it is not in the index, its file is missing, or not what was written.
        """
        entry = self.entry(identifier)
        path = brick_path(self.path, identifier)
        data = file_bytes(path, f"brick {identifier} is missing from {self.path}: copy the suite again")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise UserError(f"{path} is not what the suite's index says: copy the suite anew, or generate it")
        brick: Brick = _parsed(path, data, brick_from_json)
        if brick.id != identifier:
            raise UserError(f"{path} holds brick {brick.id}: copy the suite anew, or generate it")
        return brick


def private_directory(suite: Path) -> Path:
    """Where the compositions of a suite's models are kept: beside it, so that it can be given away by itself."""
    place = suite.resolve()
    return place.with_name(f"{place.name}.private")


def brick_path(suite: Path, identifier: str) -> Path:
    """File of a brick."""
    return suite / BRICKS / f"{identifier}.json"


def brick_bytes(brick: Brick) -> bytes:
    """What a brick's file holds."""
    return canonical(brick_to_json(brick)).encode()


def index_bytes(g: int, method: str, torch: str, bricks: dict[str, Entry]) -> bytes:
    """What a suite's index holds: sorted by identifier, with a hash over itself."""
    index = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "g": g, "method": method, "torch": torch,
             "bricks": {brick: bricks[brick] for brick in sorted(bricks)}}  # fmt: skip
    return json.dumps({**index, "digest": _digest(index)}, indent=1).encode()


def _digest(index: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(index).encode()).hexdigest()


def load_suite(path: Path) -> Suite:
    """Read a suite's index.

    Raises:
        UserError: there is no suite, it is newer than this charact, or it is not what was written.
    """
    file = path / INDEX
    data = file_bytes(file, f"no suite of bricks in {path}: charact bricks generate writes one")
    index = _parsed(file, data, _checked_format)
    if index["schema_version"] > SCHEMA_VERSION:
        raise UserError(f"{path} has schema version {index['schema_version']}, this charact reads up to "
                        f"{SCHEMA_VERSION}: update charact")  # fmt: skip
    digest = index.pop("digest", None)
    if digest != _parsed(file, data, lambda _: _digest(index)):
        raise UserError(f"{file} was changed after it was written: copy the suite anew, or generate it")
    suite: Suite = _parsed(file, data, lambda _: _suite(path, index, str(digest)))
    return suite


def _suite(path: Path, index: dict[str, Any], digest: str) -> Suite:
    if any(set(entry) != set(Entry.__annotations__) for entry in index["bricks"].values()):
        raise ValueError("its index is incomplete")
    bricks = msgspec.convert(index["bricks"], dict[str, Entry])
    return Suite(path, int(index["g"]), str(index["method"]), str(index["torch"]), bricks, digest)


def _checked_format(index: Any) -> dict[str, Any]:
    if index["format"] != FORMAT or type(index["schema_version"]) is not int:
        raise ValueError("it is of another format")
    return dict(index)


def _parsed(path: Path, data: bytes, read: Callable[[Any], Any]) -> Any:
    """JSON, read into something.

    Raises:
        UserError: it is no JSON, or not of what is read.
    """
    try:
        return read(strict_json(data))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise UserError(f"{path} is no part of a suite ({type(error).__name__}: {error}): copy the suite anew, or "
                        "generate it") from error  # fmt: skip
