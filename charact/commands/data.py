"""`charact data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.core.output import show, warn

if TYPE_CHECKING:
    from charact.datasets._common.spec import PublishedFile, StoredDatasetSpec

group = typer.Typer(rich_markup_mode=None, help="Fetch the files of real data sets, and check them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Data set, e.g. mnist, cifar10; see `charact list`.")]


@group.command()
def fetch(
    name: Name,
    to: Annotated[Path, typer.Option(help="Directory that gets a folder for the data set.")] = Path("data"),
    source: Annotated[str | None, typer.Option(
        help="Address of a mirror, to which the files' names are added. Default: the published one.")] = None,
    max_bytes: Annotated[str | None, typer.Option(
        help="Largest file, packed or unpacked, whose size was not published, e.g. 1GiB.")] = None,
) -> int:
    """Download the files of a data set and verify them.

    What is there and right is not fetched again. A download that is cut goes on where it was, also the next time. A
    file that cannot be had leaves the others to be fetched, and the exit status is 1.

    \b
      charact data fetch mnist
      charact data fetch cifar10 --to ~/data
    """  # noqa: D301  (click wants the character itself)
    from charact.core.bounded_reading import limited_to, parse_bytes
    from charact.core.errors import UserError
    from charact.datasets._fetch import stored_dataset
    from charact.views.tables.format import num_bytes

    spec = stored_dataset(name, source)
    most_bytes = None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes")
    lacking = []
    for file in (file for file in spec.files if file.splits):
        try:
            with limited_to(most_bytes):
                place, before = _fetch(spec, file, to)
        except UserError as error:
            lacking.append(file.name)
            show(f"{file.name}: n/a ({error})")
        else:
            fetched = f"fetched, {num_bytes(place.stat().st_size)} (it was {before})"
            show(f"{place}: {'there and right' if before is None else fetched}")
    if lacking:
        warn(f"error: {name} lacks {', '.join(lacking)}, for the reasons above: once they are mended, the same "
             "command fetches the rest")
        return 1
    show(f"Use it with --data {name} --data-dir {to}")
    return 0


def _fetch(spec: "StoredDatasetSpec", file: "PublishedFile", directory: Path) -> tuple[Path, str | None]:
    """As `fetch_file`, with its progress on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from charact.core.console import Console
    from charact.datasets._fetch import fetch_file

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(file.name, total=None)

        def told(num_done: int, num_bytes: int | None) -> None:
            progress.update(task, completed=num_done, total=num_bytes)

        return fetch_file(spec, file, directory, told)


@group.command()
def check(
    name: Name,
    data_dir: Annotated[Path, typer.Option(help="Where its files are.")] = Path("data"),
) -> int:
    """Tell which files of a data set are there and right.

    It tells which splits can be read, too. A data set has its files in several forms, of which one is enough. The
    exit status is 0 where a split can be read, else 1.
    """
    from charact.commands._shared.print_table import print_table
    from charact.core.errors import UserError
    from charact.datasets._fetch import file_state, split_samples, stored_dataset

    spec = stored_dataset(name)
    print_table(None, ["file", "state"], [[file.name, file_state(spec, file, data_dir)] for file in spec.files])
    rows, any_read = [], False
    for split in spec.splits:
        try:
            rows.append([split, split_samples(spec, data_dir, split)])
            any_read = True
        except UserError as error:
            rows.append([split, f"n/a ({error})"])
    print_table(None, ["split", "samples"], rows)
    return 0 if any_read else 1
