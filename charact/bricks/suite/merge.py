"""Merging suites: each brick once, and the compositions of all models."""

from collections.abc import Sequence
from pathlib import Path

from charact.bricks.suite.composition import Composition, read_composition, write_composition
from charact.bricks.suite.index import Entry, Suite, brick_path, load_suite, private_directory
from charact.bricks.suite.writer import check_place, extended_entry, suite_lock, write_suite
from charact.core.errors import UserError


def merge(suites: Sequence[Path], out: Path) -> Suite:
    """Write a suite with the bricks of several suites, and their compositions where available.

    A brick of several suites keeps the value distributions of the first.

    Raises:
        UserError: the suites were cut differently, have different compositions of one model, or are damaged; or the
            output directory is not empty.
    """
    read = [load_suite(path) for path in suites]
    first = read[0]
    for other in read[1:]:
        if (other.g, other.method) != (first.g, first.method):
            raise UserError(f"{other.path} was cut with -g {other.g} --cut {other.method}, {first.path} with "
                            f"-g {first.g} --cut {first.method}: merge suites that were cut with the same "
                            "options")
    entries: dict[str, Entry] = {}
    files: dict[str, bytes] = {}
    for suite in read:
        for brick, entry in suite.bricks.items():
            suite.brick(brick)  # validates the file
            if brick not in entries:
                entries[brick], files[brick] = entry, brick_path(suite.path, brick).read_bytes()
            entries[brick] = extended_entry(entries[brick], entry["batch_sizes"], entry["precisions"])
    compositions = _merged(read)
    _check_new(out, first)  # before the lock file is created
    with suite_lock(out):
        _check_new(out, first)
        write_suite(out, first.g, first.method, first.torch, entries, files)
        for composition in compositions:
            write_composition(composition, private_directory(out))
    return load_suite(out)


def _check_new(out: Path, like: Suite) -> None:
    if check_place(out, like.g, like.method) is not None:
        raise UserError(f"{out} is already a suite: name a new directory with --out")


def _merged(suites: Sequence[Suite]) -> list[Composition]:
    """Return the compositions of all suites, each model once."""
    found: dict[str, tuple[Composition, Path]] = {}
    for suite in suites:
        for path in sorted(suite.private.glob("*.json")):
            composition = read_composition(path)
            known, place = found.setdefault(composition.case, (composition, path))
            if known != composition:
                raise UserError(f"{place} and {path} are different compositions of {composition.case}: generate one of "
                                "them again with another variant or function")  # fmt: skip
    return [composition for composition, _ in found.values()]
