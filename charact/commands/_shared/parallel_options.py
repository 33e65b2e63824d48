"""Options of data-parallel cases: how ranks train together, and how many there are."""

from itertools import product
from typing import Annotated

import typer

from charact.commands._shared.options import parse_list, parse_sizes
from charact.core.errors import UserError
from charact.core.text import did_you_mean
from charact.record.schema import PARALLEL

Parallel = Annotated[str | None, typer.Option(
    metavar="NAMES", help="Data-parallel training: ddp, fsdp2, or both; with --nproc.")]
NumRanks = Annotated[str | None, typer.Option(
    "--nproc", metavar="N", help="Number of ranks for --parallel, e.g. 8 or 2,4,8. --batch-sizes are those of each "
                                 "rank.")]
_MAX_RANKS = 65_536


def parse_ranks(parallel: str | None, nproc: str | None, *, with_one: bool = False) -> list[tuple[str | None, int]]:
    """Return each combination of how ranks train together and how many there are; none without the options.

    Args:
        parallel: the option `--parallel`.
        nproc: the option `--nproc`.
        with_one: whether a single process is a number of ranks, too; it comes first, without a name.
    """
    if parallel is None and nproc is None:
        return []
    if nproc is None:
        raise UserError(f"--parallel {parallel} needs the number of ranks: add --nproc 8")
    if parallel is None:
        raise UserError(f"--nproc {nproc} needs --parallel: add --parallel ddp or --parallel fsdp2")
    names = parse_list(parallel, "--parallel")
    for name in names:
        if name not in PARALLEL:
            known = f"use {' or '.join(PARALLEL)}"
            raise UserError(f"--parallel: '{name}' is unknown: {did_you_mean(name, PARALLEL, known)}")
    numbers = parse_sizes(nproc, "--nproc")
    if 1 in numbers and not with_one:
        raise UserError("--nproc 1 is a single process: leave --parallel and --nproc out, or give 2 ranks or more")
    if max(numbers) > _MAX_RANKS:
        raise UserError(f"--nproc {max(numbers)} is more than {_MAX_RANKS:,} ranks: give fewer")
    alone: list[tuple[str | None, int]] = [(None, 1)] if 1 in numbers else []
    return [*alone, *product(names, [number for number in numbers if number > 1])]
