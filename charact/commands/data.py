"""`charact data`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._shared import completion
from charact.core.output import show, warn

if TYPE_CHECKING:
    from charact.datasets._common.spec import PublishedFile, StoredDatasetSpec

group = typer.Typer(rich_markup_mode=None, help="Download the files of real data sets, and check them.")

Name = Annotated[str, typer.Argument(
    metavar="NAME", help="Data set, e.g. mnist, cifar10; see `charact list`.",
    autocompletion=completion.stored_datasets)]


@group.command()
def fetch(
    name: Name,
    to: Annotated[Path, typer.Option(help="Directory in which to create the data set's folder.")] = Path("data"),
    source: Annotated[str | None, typer.Option(
        help="URL of a mirror, without the files' names. Default: the original source.")] = None,
    max_bytes: Annotated[str | None, typer.Option(
        help="Maximum size of files without a published size, packed or unpacked, e.g. 1GiB.")] = None,
) -> int:
    """Download the files of a data set and verify them.

    Files that are present and correct are not downloaded again. If a file is not available, the others are still
    downloaded, and the exit status is 1.

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
            fetched = f"downloaded, {num_bytes(place.stat().st_size)} (before: {before})"
            show(f"{place}: {'already correct' if before is None else fetched}")
    if lacking:
        warn(f"error: {name} lacks {', '.join(lacking)}, for the reasons above: fix them, then run the same "
             "command again")
        return 1
    show(f"Use it with --data {name} --data-dir {to}")
    return 0


def _fetch(spec: "StoredDatasetSpec", file: "PublishedFile", directory: Path) -> tuple[Path, str | None]:
    """Call `fetch_file`, with its progress on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from charact.core.console import Console
    from charact.datasets._fetch import fetch_file

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(file.name, total=None)

        def on_progress(num_done: int, num_bytes: int | None) -> None:
            progress.update(task, completed=num_done, total=num_bytes)

        return fetch_file(spec, file, directory, on_progress)


@group.command()
def check(
    name: Name,
    data_dir: Annotated[Path, typer.Option(help="Directory of its files.")] = Path("data"),
) -> int:
    """Check the files of a data set, and which splits can be read.

    A data set may have its files in several formats, of which one is enough. The exit status is 0 if a split can be
    read, else 1.
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
