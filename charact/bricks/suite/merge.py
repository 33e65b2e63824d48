"""One suite of several: each brick once, and the compositions of all their models."""

from collections.abc import Sequence
from pathlib import Path

from charact.bricks.suite.composition import Composition, read_composition, write_composition
from charact.bricks.suite.index import Entry, Suite, brick_path, load_suite, private_directory
from charact.bricks.suite.writer import alone, check_place, found_also, write_suite
from charact.core.errors import UserError


def merge(suites: Sequence[Path], out: Path) -> Suite:
    """Write a suite that holds the bricks of several, and their compositions as far as they are there.

    A brick that several have is the first one's, with how its inputs are drawn.

    Raises:
        UserError: they were cut in different ways, tell one model differently, are damaged, or something stands where
            the suite is to be written.
    """
    read = [load_suite(path) for path in suites]
    first = read[0]
    for other in read[1:]:
        if (other.g, other.method) != (first.g, first.method):
            raise UserError(f"{other.path} was cut with -g {other.g} --cut {other.method}, {first.path} with "
                            f"-g {first.g} --cut {first.method}: merge those that were cut alike")  # fmt: skip
    entries: dict[str, Entry] = {}
    files: dict[str, bytes] = {}
    for suite in read:
        for brick, entry in suite.bricks.items():
            suite.brick(brick)  # checked, also where it is there already
            if brick not in entries:
                entries[brick], files[brick] = entry, brick_path(suite.path, brick).read_bytes()
            entries[brick] = found_also(entries[brick], entry["batch_sizes"], entry["precisions"])
    compositions = _merged(read)
    _check_new(out, first)  # before a lock is left there
    with alone(out):
        _check_new(out, first)
        write_suite(out, first.g, first.method, first.torch, entries, files)
        for composition in compositions:
            write_composition(composition, private_directory(out))
    return load_suite(out)


def _check_new(out: Path, like: Suite) -> None:
    if check_place(out, like.g, like.method) is not None:
        raise UserError(f"{out} is a suite already: name a new directory with --out")


def _merged(suites: Sequence[Suite]) -> list[Composition]:
    """Compositions of all suites, each model once."""
    found: dict[str, tuple[Composition, Path]] = {}
    for suite in suites:
        for path in sorted(suite.private.glob("*.json")):
            composition = read_composition(path)
            known, place = found.setdefault(composition.case, (composition, path))
            if known != composition:
                raise UserError(f"{place} and {path} tell {composition.case} differently: generate one of them anew "
                                "with another variant or function")  # fmt: skip
    return [composition for composition, _ in found.values()]
