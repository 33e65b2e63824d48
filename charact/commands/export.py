"""`charact export`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.output import show


def command(
    run: Annotated[Path, typer.Argument(
        help="Run directory, such as one below runs/.", metavar="RUN", autocompletion=completion.runs)],
    form: Annotated[str | None, typer.Option(
        "--format", help="csv, json, parquet, perfetto, mlflow, prometheus or wandb.", metavar="FORMAT",
        autocompletion=completion.export_formats)] = None,
    to: Annotated[Path | None, typer.Option(
        help="Directory to write, or file of prometheus or perfetto. Default: <run>-<format>, <run>.prom or "
             "<run>.trace.json.gz in the current directory. Without --format, the format itself: --to mlflow.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the directory or file if it exists.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Read a killed run.")] = False,
) -> None:
    """Write a run's tables to files, or log it to a tracker.

    csv, json and parquet write the table `summary` with the headline numbers of each case, the record's tables that
    have rows, the manifest and a description of every column. In CSV, a text that begins
    with = + - @, a tab or a line break, which a spreadsheet could run as a formula, gets an apostrophe in front. To
    read such a text back, remove one apostrophe. Numbers, JSON and Parquet are unchanged.

    MLflow and W&B get the scalars that TensorBoard shows, the parameters of the cases, the report and the tables. Their
    own variables choose the place: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, WANDB_MODE, WANDB_PROJECT, WANDB_DIR.
    prometheus writes a file for the textfile collector of its node exporter. perfetto merges the traces of all cases
    into one file, with a process row for each rank.

    \b
      charact export runs/<run> --format csv
      charact export runs/<run> --to mlflow
      charact export runs/<run> --format perfetto --to all-ranks.json.gz
      charact export runs/<run> --format prometheus --to /var/lib/node_exporter/charact.prom --force
    """  # noqa: D301  (click wants the character itself)
    from charact.commands._shared.merged_trace import MERGED_FORMAT, export_merged
    from charact.commands._shared.partial_runs import read_run
    from charact.views.export.tables import FORMATS, export
    from charact.views.export.tracker import all_trackers, export_to

    trackers = all_trackers()
    names = (*FORMATS, MERGED_FORMAT, *trackers)
    if form is None:
        if to is None or str(to) not in names:
            raise UserError(f"name a format with --format: one of {', '.join(names)}")
        form, to = str(to), None
    if form not in names:
        raise UserError(f"unknown format '{form}': choose from {', '.join(names)}")
    loaded = read_run(run, partial=partial)
    if form == MERGED_FORMAT:
        show(export_merged(loaded, to, force=force))
        return
    if form in trackers:
        show(export_to(trackers[form], loaded, to, force=force))
        return
    target = to or Path(f"{loaded.run_id}-{form}")
    show(f"Wrote {target}: {', '.join(export(loaded, form, target, force=force))}")
