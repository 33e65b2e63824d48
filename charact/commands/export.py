"""`charact export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import show

if TYPE_CHECKING:
    from charact.record.manifest import CaseEntry
    from charact.record.reader import Run

MERGED_FORMAT = "perfetto"


def command(
    run: opt.Run,
    form: Annotated[str | None, typer.Option(
        "--format", help="csv, json, parquet, perfetto, mlflow, prometheus or wandb.", metavar="FORMAT",
        autocompletion=completion.export_formats)] = None,
    to: Annotated[Path | None, typer.Option(
        help="Directory to write, or file of prometheus or perfetto. Default: <run>-<format>, <run>.prom or "
             "<run>.trace.json.gz in the current directory. Without --format, the format itself: --to mlflow.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the directory or file if it exists.")] = False,
    partial: opt.Partial = False,
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
    from charact.commands._shared.runs import read_run
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
        show(_export_merged(loaded, to or Path(f"{loaded.run_id}.trace.json.gz"), force=force))
    elif form in trackers:
        show(export_to(trackers[form], loaded, to, force=force))
    else:
        target = to or Path(f"{loaded.run_id}-{form}")
        show(f"Wrote {target}: {', '.join(export(loaded, form, target, force=force))}")


def _export_merged(run: "Run", path: Path, *, force: bool) -> str:
    """Write the traces of a run's cases into one file for Perfetto; return a line that names it.

    A case of a rank has the name of its rank. The traces are those in the run, or, of an imported run, the files from
    which it was imported.
    """
    from charact.traces.merge import Row, merge_traces

    def trace_of(entry: "CaseEntry") -> Path | None:
        own = run.trace(entry.case)
        if own is None and is_imported and entry.source and Path(entry.source).is_file():
            return Path(entry.source)
        return own

    if path.exists() and not force:
        raise UserError(f"{path} exists: --force replaces it, --to names another")
    is_imported = bool(run.manifest["options"].get("traces"))
    rows, lacking = [], []
    for entry in sorted(run.entries, key=lambda entry: -1 if entry.rank is None else entry.rank):
        trace = trace_of(entry)
        if trace is None:
            lacking.append(entry.case)
        else:
            rows.append(Row(entry.case if entry.rank is None else f"rank {entry.rank} ({entry.case})", trace))
    if not rows:
        sources = [entry.source for entry in run.entries if is_imported and entry.source]
        remedy = (f"{sources[0]} is not there: run this in the directory of charact import" if sources
                  else "record them with --passes operators")
        raise UserError(f"{run.path} has no traces: {remedy}")
    merge_traces(rows, path)
    without = f"; without {', '.join(lacking)}, which {'has' if len(lacking) == 1 else 'have'} no trace"
    return f"Wrote {path}: {', '.join(row.name for row in rows)}{without if lacking else ''}"
