"""A suite: a directory of bricks with an index, without names, weights or order.

`suite/suite.json` holds the options of the cut and an entry for each brick, by identifier; `suite/bricks/<id>.json`
holds one brick. The sibling directory `suite.private/` holds the models' compositions (see `composition`).
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypedDict

import msgspec

from charact.bricks.suite.brick import Brick, brick_from_json, brick_to_json, canonical, file_bytes, parsed
from charact.bricks.suite.composition import Composition, CutModel, write_composition
from charact.core.errors import UserError
from charact.core.files import atomic_write, is_begun, lock, release, writing
from charact.record.manifest_program import Count

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
        """Return the index entry of a brick."""
        if identifier not in self.bricks:
            raise UserError(f"{self.path} has no brick {identifier}: add the model that needs it to the suite")
        return self.bricks[identifier]

    def brick(self, identifier: str) -> Brick:
        """Read a brick and check its file against the index."""
        entry = self.entry(identifier)
        path = brick_path(self.path, identifier)
        data = file_bytes(path, f"brick {identifier} is missing from {self.path}: copy the suite again")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise UserError(f"{path} does not match the suite's index: copy the suite again, or generate it again")
        brick = parsed(path, data, brick_from_json)
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


def index_bytes(g: int, method: str, torch: str, bricks: dict[str, Entry]) -> bytes:
    """Return the content of a suite's index, sorted by identifier and with its own hash."""
    index = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "g": g, "method": method, "torch": torch,
             "bricks": {brick: bricks[brick] for brick in sorted(bricks)}}  # fmt: skip
    return json.dumps({**index, "digest": _digest(index)}, indent=1).encode()


def _digest(index: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(index).encode()).hexdigest()


def load_suite(path: Path) -> Suite:
    """Read a suite's index."""
    file = path / INDEX
    data = file_bytes(file, f"no suite of bricks in {path}: charact bricks generate writes one")
    return parsed(file, data, lambda index: _read(path, index))


def _read(path: Path, index: Any) -> Suite:
    version = index["schema_version"]
    if index["format"] != FORMAT or type(version) is not int:
        raise ValueError("it is of another format")
    if version > SCHEMA_VERSION:
        raise UserError(f"{path} has schema version {version}, this charact reads up to {SCHEMA_VERSION}: update "
                        "charact")
    given, digest = index.pop("digest", None), _digest(index)
    if given != digest:
        raise UserError(f"{path / INDEX} was changed after it was written: copy the suite again, or generate it again")
    if any(set(entry) != set(Entry.__annotations__) for entry in index["bricks"].values()):
        raise ValueError("its index is incomplete")
    bricks = msgspec.convert(index["bricks"], dict[str, Entry])
    return Suite(path, msgspec.convert(index["g"], Count), str(index["method"]), str(index["torch"]), bricks, digest)


_WRITTEN_AT = 315_532_800
"""Fixed modification time, so that a suite does not reveal the order in which it was written: the start of 1980, the
earliest time that ZIP supports."""

_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Added:
    """Result of adding models to a suite."""

    suite: Suite
    num_new: int
    """Number of bricks that the suite did not have."""
    replaced: list[str]
    """Cases whose compositions were replaced."""


def add_models(directory: Path, models: Sequence[CutModel], g: int, method: str, torch: str,
               decoys: Sequence[CutModel] = (), patience_s: float = 0.0) -> Added:
    """Add models to a suite, or create the suite.

    Bricks are written before the index that names them, and compositions last, so that readers always find a complete
    suite. The next writer removes a killed writer's files, and bricks that the index does not name.
    """
    with suite_lock(directory, patience_s):
        old = check_place(directory, g, method)
        entries = {} if old is None else dict(old.bricks)
        known = set(entries)
        new: dict[str, bytes] = {}
        for model in [*models, *decoys]:
            for brick in model.bricks:
                _enter(entries, new, brick, model.composition)
        with writing(directory):
            (directory / BRICKS).mkdir(parents=True, exist_ok=True)
            begun = [path for path in directory.iterdir() if is_begun(path)]
            unnamed = [path for path in (directory / BRICKS).iterdir()
                       if path.stem not in entries or path.suffix != ".json"]  # fmt: skip
            for path in begun + unnamed:
                path.unlink()
        for identifier in sorted(new):
            _write_file(brick_path(directory, identifier), new[identifier], durable=False)
        _write_file(directory / INDEX, index_bytes(g, method, torch if old is None else old.torch, entries))
        with writing(directory):
            for place in (directory / BRICKS, directory):
                os.utime(place, (_WRITTEN_AT, _WRITTEN_AT))
        replaced = [model.composition.case for model in models
                    if write_composition(model.composition, private_directory(directory))]
    return Added(load_suite(directory), len(set(entries) - known), replaced)


def check_place(directory: Path, g: int, method: str) -> Suite | None:
    """Return the existing suite of a directory, or None."""
    with writing(directory):
        there = {path.name for path in directory.iterdir() if not is_begun(path)} if directory.exists() else set()
    if INDEX not in there:
        if there - {BRICKS}:
            raise UserError(f"{directory} holds files that do not belong to a suite of bricks: name another directory "
                            "with --out")
        return None
    old = load_suite(directory)
    if (old.g, old.method) != (g, method):
        raise UserError(f"{directory} was cut with -g {old.g} --cut {old.method}, not -g {g} --cut {method}: "
                        "name another directory with --out")  # fmt: skip
    return old


def _enter(entries: dict[str, Entry], new: dict[str, bytes], brick: Brick, model: Composition) -> None:
    """Record in the index entries that a model has a brick, and add the file of a new brick to `new`."""
    if brick.id not in entries:
        stored = brick if model.facts.get("input_kind") == "image" else perturbed(brick)
        data = new[brick.id] = canonical(brick_to_json(stored)).encode()
        entries[brick.id] = {
            "kind": brick.kind, "mode": model.mode, "precision": brick.precision, "batch_sizes": [],
            "precisions": [], "num_layers": brick.num_layers, "layer_types": brick.layer_types,
            "sha256": hashlib.sha256(data).hexdigest(),
        }  # fmt: skip
    entry, sizes = entries[brick.id], [] if model.batch_size is None else [model.batch_size]
    entries[brick.id] = {**entry, "batch_sizes": sorted({*entry["batch_sizes"], *sizes}),
                         "precisions": sorted({*entry["precisions"], model.precision})}


def perturbed(brick: Brick) -> Brick:
    """Return the brick with perturbed value distributions, which do not identify the layer that computed them.

    The distribution itself seeds the perturbation. The same model therefore always gives the same suite, and bricks
    that read the same value can share one tensor.
    """
    from charact.bricks import value_distributions  # imported late: it imports torch

    return replace(brick, inputs=tuple(
        replace(each, sample=value_distributions.perturbed(each.sample, Random(canonical(each.sample))))
        for each in brick.inputs))


def _write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file with a modification time that does not reveal when."""
    with atomic_write(path, durable=durable) as temporary:
        temporary.write_bytes(data)
        os.utime(temporary, (_WRITTEN_AT, _WRITTEN_AT))


@contextlib.contextmanager
def suite_lock(directory: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the suite's lock; wait up to `patience_s` seconds for another process to release it."""
    private = private_directory(directory)
    with writing(private):
        private.mkdir(parents=True, exist_ok=True)
    path = private / ".lock"
    limit = time.monotonic() + patience_s
    while (held := lock(path)) is None and time.monotonic() < limit:
        time.sleep(_POLL_INTERVAL_S)
    if held is None:
        raise UserError(f"{directory} is being written by another process: try again when it has finished")
    try:
        yield
    finally:
        release(held, path)
