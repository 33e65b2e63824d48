"""Writing suites: adds the bricks of models that a suite does not have yet."""

import contextlib
import hashlib
import math
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from charact.bricks.brick import Brick, brick_of, canonical, runs_as
from charact.bricks.captured_graph import CapturedModel, cut, reuse_distances
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
from charact.core.files import atomic_write, is_begun, lock, release, writing

_WRITTEN_AT = 315_532_800
"""Fixed modification time, so that a suite does not reveal the order in which it was written: the start of 1980, the
earliest time that ZIP supports."""

_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True)
class CutModel:
    """A model cut into bricks, not yet in a suite."""

    composition: Composition
    bricks: tuple[Brick, ...]
    """Distinct bricks."""


@dataclass(frozen=True)
class Added:
    """Result of adding models to a suite."""

    suite: Suite
    num_new: int
    """Number of bricks that the suite did not have."""
    replaced: list[str]
    """Cases whose compositions were replaced."""


def cut_model(captured: CapturedModel, what: Configuration, g: int, method: str) -> CutModel:
    """Cut a captured model into bricks."""
    segments = cut(captured, g, method)
    distances, precision = reuse_distances(captured), runs_as(what.precision)
    bricks = [brick_of(captured, segment, what.mode, precision, distances.of(segment)) for segment in segments]
    composition, others = compose(captured, segments, bricks, what, g, method)
    by_id: dict[str, list[Brick]] = {}
    for brick in [*bricks, *others]:
        by_id.setdefault(brick.id, []).append(brick)
    return CutModel(composition, tuple(_with_mixed_samples(same) for same in by_id.values()))


def _with_mixed_samples(same: Sequence[Brick]) -> Brick:
    """Return a brick that occurs several times in a model, with the mixture of its value distributions."""
    from charact.bricks import value_distributions  # imported late: it imports torch

    return replace(same[0], inputs=tuple(
        replace(each[0], sample=value_distributions.mixture([one.sample for one in each]))
        for each in zip(*(brick.inputs for brick in same), strict=True)
    ))  # fmt: skip


def add_models(directory: Path, models: Sequence[CutModel], g: int, method: str, torch: str,
               decoys: Sequence[CutModel] = (), patience_s: float = 0.0) -> Added:
    """Add models to a suite, or create the suite.

    Bricks are written before the index that names them, and compositions last, so that readers always find a complete
    suite. The next writer removes files that a killed writer left behind.

    Args:
        directory: the suite's directory.
        models: models whose bricks and compositions are written.
        g: maximum number of layers in a segment, the same for all models of a suite.
        method: of cutting, the same for all models of a suite.
        torch: version of PyTorch that captured the models.
        decoys: models of which only the bricks are written.
        patience_s: maximum time to wait for another process that writes the suite.

    Raises:
        UserError: the suite was cut with other options, another process writes it, or the disk is full.
    """
    with suite_lock(directory, patience_s):
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
    return Added(load_suite(directory), len(set(entries) - known), replaced)


def check_place(directory: Path, g: int, method: str) -> Suite | None:
    """Return the existing suite of a directory, or None.

    Raises:
        UserError: it was cut with other options, cannot be read, or the directory holds other files.
    """
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


def _enter(entries: dict[str, Entry], new: dict[str, Brick], brick: Brick, model: Composition) -> None:
    """Record in the index entries that a model has a brick."""
    sizes = [] if model.batch_size is None else [model.batch_size]
    if brick.id not in entries:
        brick = new[brick.id] = brick if model.facts.get("input_kind") == "image" else perturbed(brick)
        entries[brick.id] = {
            "kind": brick.kind, "mode": model.mode, "precision": brick.precision, "batch_sizes": [],
            "precisions": [], "num_layers": brick.num_layers, "layer_types": brick.layer_types,
            "sha256": hashlib.sha256(brick_bytes(brick)).hexdigest(),
        }  # fmt: skip
    entries[brick.id] = extended_entry(entries[brick.id], sizes, [model.precision])


def perturbed(brick: Brick) -> Brick:
    """Return the brick with perturbed value distributions, which do not identify the layer that computed them.

    The distribution itself seeds the perturbation. The same model therefore always gives the same suite, and bricks
    that read the same value can share one tensor.
    """
    from charact.bricks import value_distributions  # imported late: it imports torch

    samples = (value_distributions.perturbed(each.sample, Random(canonical(each.sample))) for each in brick.inputs)
    return replace(brick, inputs=tuple(
        replace(each, sample=sample) for each, sample in zip(brick.inputs, samples, strict=True)
    ))  # fmt: skip


def extended_entry(entry: Entry, batch_sizes: Sequence[int], precisions: Sequence[str]) -> Entry:
    """Return the index entry of a brick with the batch sizes and precisions of further models."""
    return {**entry, "batch_sizes": sorted({*entry["batch_sizes"], *batch_sizes}),
            "precisions": sorted({*entry["precisions"], *precisions})}


def write_suite(directory: Path, g: int, method: str, torch: str, entries: dict[str, Entry],
                new: dict[str, bytes]) -> None:
    """Write new bricks and then the index, all with the same modification time.

    Removes bricks that the index does not name, and temporary files of killed writers.
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


_MOST_FRAC = 0.5
"""Maximum share of a model's bricks used as decoys; a complete model would look like a requested one."""


def drawn_decoys(others: Iterable[CutModel], known: Collection[str], number: int) -> list[CutModel]:
    """Return models reduced to randomly chosen bricks that together contain `number` new bricks.

    The choice uses the system's random numbers, so that it cannot be reproduced.

    Args:
        others: models that were not requested, in random order; only as many as needed are consumed.
        known: identifiers of the suite's bricks.
        number: number of decoys; the result has fewer if the models have fewer.
    """
    random, taken, found, left = secrets.SystemRandom(), set(known), [], number
    for model in others:
        new = [brick for brick in model.bricks if brick.id not in taken]
        chosen = random.sample(new, min(left, math.ceil(len(new) * _MOST_FRAC)))
        taken.update(brick.id for brick in chosen)
        left -= len(chosen)
        found.append(replace(model, bricks=tuple(chosen)))
        if left == 0:
            break
    return found
