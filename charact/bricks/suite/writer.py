"""Writing suites: models in, only those bricks added that are not there yet."""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from charact.bricks.brick import Brick, brick_of, canonical, runs_as
from charact.bricks.captured_graph import CapturedModel
from charact.bricks.cut import cut
from charact.bricks.reuse_distance import contexts_of
from charact.bricks.suite.composition import Composition, Configuration, compose, write_composition
from charact.bricks.suite.index import (
    BRICKS,
    INDEX,
    Entry,
    Suite,
    brick_bytes,
    brick_path,
    index_bytes,
    load_suite,
    private_directory,
)
from charact.core.errors import UserError
from charact.core.files import is_begun, lock, release, whole, writing

_WRITTEN_AT = 315_532_800
"""Time that all files of a suite bear, so that it tells no order: the start of 1980, the first that ZIP knows."""

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class CutModel:
    """A model as bricks, not yet in a suite."""

    composition: Composition
    bricks: tuple[Brick, ...]
    """Each different one once."""


@dataclass(frozen=True)
class Added:
    """What a suite gained."""

    suite: Suite
    num_new: int
    """Bricks that it did not have."""
    num_known: int
    """Different bricks of the models that it had."""
    replaced: list[str]
    """Cases whose compositions took the place of others."""


def cut_model(captured: CapturedModel, what: Configuration, g: int, method: str) -> CutModel:
    """Cut a captured model into bricks."""
    pieces = cut(captured, g, method)
    contexts, precision = contexts_of(captured), runs_as(what.precision)
    standing = [brick_of(captured, piece, what.mode, precision, contexts.of(piece)) for piece in pieces]
    composition, others = compose(captured, pieces, standing, what, g, method)
    places: dict[str, list[Brick]] = {}
    for brick in [*standing, *others]:
        places.setdefault(brick.id, []).append(brick)
    return CutModel(composition, tuple(_of_all(alike) for alike in places.values()))


def _of_all(alike: Sequence[Brick]) -> Brick:
    """The brick that stands at several places of a model, which reads what all of them read."""
    from charact.bricks import value_distributions  # here, since it imports torch and merging suites does not

    return replace(alike[0], inputs=tuple(
        replace(each[0], sample=value_distributions.mixed([one.sample for one in each]))
        for each in zip(*(brick.inputs for brick in alike), strict=True)
    ))  # fmt: skip


def add_models(directory: Path, models: Sequence[CutModel], g: int, method: str, torch: str,
               decoys: Sequence[CutModel] = (), patience_s: float = 0.0) -> Added:
    """Add models to a suite, which is made where there is none.

    Bricks are written before the index that names them, compositions last. So what a reader sees is whole, and what
    a kill leaves behind is taken away by the next writer.

    Args:
        directory: of the suite.
        models: whose bricks and compositions are kept.
        g: most layers of a piece, the same for all models of a suite.
        method: of cutting, likewise.
        torch: version of PyTorch that captured them.
        decoys: whose bricks alone are kept.
        patience_s: how long to wait for another process that writes the suite, which takes it seconds.

    Raises:
        UserError: the suite was cut otherwise, another process writes it, or there is no room.
    """
    with alone(directory, patience_s):
        old = check_place(directory, g, method)
        entries = {} if old is None else dict(old.bricks)
        known = set(entries)
        new: dict[str, Brick] = {}
        for model in [*models, *decoys]:
            for brick in model.bricks:
                _enter(entries, new, brick, model.composition)
        write_suite(directory, g, method, torch if old is None else old.torch, entries,
                    {brick.id: brick_bytes(brick) for brick in new.values()})  # fmt: skip
        replaced = [model.composition.case for model in models
                    if write_composition(model.composition, private_directory(directory))]
    found = {brick.id for model in models for brick in model.bricks}
    return Added(load_suite(directory), len(set(entries) - known), len(found & known), replaced)


def check_place(directory: Path, g: int, method: str) -> Suite | None:
    """The suite that stands in a directory, which is to be extended; None where there is none.

    Raises:
        UserError: it was cut otherwise, cannot be read, or something else stands there.
    """
    with writing(directory):
        there = {path.name for path in directory.iterdir() if not is_begun(path)} if directory.exists() else set()
    if INDEX not in there:
        if there - {BRICKS}:
            raise UserError(f"{directory} holds files that are no suite of bricks: name another directory with --out")
        return None
    old = load_suite(directory)
    if (old.g, old.method) != (g, method):
        raise UserError(f"{directory} was cut with -g {old.g} --cut {old.method}, not -g {g} --cut {method}: "
                        "name another directory with --out")  # fmt: skip
    return old


def _enter(entries: dict[str, Entry], new: dict[str, Brick], brick: Brick, model: Composition) -> None:
    """Note in the index that a model has a brick."""
    sizes = [] if model.batch_size is None else [model.batch_size]
    if brick.id not in entries:
        brick = new[brick.id] = blurred(brick)
        entries[brick.id] = {
            "kind": brick.kind, "mode": model.mode, "precision": brick.precision, "batch_sizes": [],
            "precisions": [], "num_layers": brick.num_layers, "layer_types": brick.layer_types,
            "sha256": hashlib.sha256(brick_bytes(brick)).hexdigest(),
        }  # fmt: skip
    entries[brick.id] = found_also(entries[brick.id], sizes, [model.precision])


def blurred(brick: Brick) -> Brick:
    """The brick with a blurred sketch of every activation that it reads, so that none tells for certain what made it.

    How one is blurred follows from what is blurred away. So the same model gives the same suite, and bricks that read
    the same can be given one tensor.
    """
    from charact.bricks import value_distributions  # here, since it imports torch and merging suites does not

    samples = (value_distributions.blurred(each.sample, Random(canonical(each.sample))) for each in brick.inputs)
    return replace(brick, inputs=tuple(
        replace(each, sample=sample) for each, sample in zip(brick.inputs, samples, strict=True)
    ))  # fmt: skip


def found_also(entry: Entry, batch_sizes: Sequence[int], precisions: Sequence[str]) -> Entry:
    """What the index says of a brick that was found in other models as well."""
    return {**entry, "batch_sizes": sorted({*entry["batch_sizes"], *batch_sizes}),
            "precisions": sorted({*entry["precisions"], *precisions})}


def write_suite(directory: Path, g: int, method: str, torch: str, entries: dict[str, Entry],
                new: dict[str, bytes]) -> None:
    """Write new bricks and then the index, all with one time.

    Files of bricks that it does not name are removed, and what a killed writer began.
    """
    with writing(directory):
        (directory / BRICKS).mkdir(parents=True, exist_ok=True)
        begun = [path for path in directory.iterdir() if is_begun(path)]
        unnamed = [path for path in (directory / BRICKS).iterdir()
                   if path.stem not in entries or path.suffix != ".json"]  # fmt: skip
        for path in begun + unnamed:
            path.unlink()
    for identifier in sorted(new):
        _write(brick_path(directory, identifier), new[identifier], durable=False)
    _write(directory / INDEX, index_bytes(g, method, torch, entries))
    with writing(directory):
        for place in (directory / BRICKS, directory):
            os.utime(place, (_WRITTEN_AT, _WRITTEN_AT))


def _write(path: Path, data: bytes, *, durable: bool = True) -> None:
    with whole(path, durable=durable) as temporary:
        temporary.write_bytes(data)
        os.utime(temporary, (_WRITTEN_AT, _WRITTEN_AT))


@contextlib.contextmanager
def alone(directory: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Keep other processes from writing the suite; one that does is waited for so long."""
    private = private_directory(directory)
    with writing(private):
        private.mkdir(parents=True, exist_ok=True)
    path = private / ".lock"
    limit = time.monotonic() + patience_s
    while (held := lock(path)) is None and time.monotonic() < limit:
        time.sleep(_LOOK_EVERY_S)
    if held is None:
        raise UserError(f"{directory} is being written by another process: try again when that has ended")
    try:
        yield
    finally:
        release(held, path)
