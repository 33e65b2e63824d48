"""The type of an export to an experiment tracker, the search for all of them, and what every tracker gets."""

import importlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.core.files import write_text
from charact.core.plugins import modules_in
from charact.record.presentable import presentable, redacted
from charact.record.reader import Run
from charact.views.export.tables import export
from charact.views.html.report import report
from charact.views.tensorboard.scalars import scalars

_PARAMETERS = ("workload", "variant", "input_kind", "input_size", "output_size", "batch_size", "mode", "precision",
               "cache", "attention", "lora_rank", "device", "device_name", "data", "num_parameters",
               "num_trainable_parameters", "status", "reason")
"""Facts of a case that are logged as its parameters."""

Parameter = str | int | float | bool


@dataclass(frozen=True)
class Tracker:
    """A program that receives runs; each file in `views/export/trackers/` defines one in a variable `TRACKER`.

    Its client is imported when a run is exported, and may be absent.
    """

    name: str
    """Value of `charact export --format`."""
    export: Callable[[Run, Path | None, bool], str]
    """Export a run, prepared by `tracked_run`, to a file (None for the default); the last argument is whether an
    existing file is replaced. Return a line that names the result."""
    writes_file: bool = False
    """Whether the tracker reads a file, which `--to` names; the others have settings of their own."""


def all_trackers() -> dict[str, Tracker]:
    """Return all trackers by name."""
    return {module.TRACKER.name: module.TRACKER for module in modules_in("charact.views.export.trackers")}


def export_to(tracker: Tracker, run: Run, target: Path | None, *, force: bool = False) -> str:
    """Export a run to a tracker; return a line that names the result."""
    if target is not None and not tracker.writes_file:
        raise UserError(f"--to is for files: leave it out, since {tracker.name} chooses its place with settings of its "
                        "own (see charact export --help)")
    return tracker.export(tracked_run(run), target, force)


def tracked_run(run: Run) -> Run:
    """Return a run without secrets and control characters in its texts."""
    return presentable(redacted(run))


def client(module: str, extra: str) -> Any:
    """Import a tracker's client."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise UserError(f"{module} is not installed: pip install 'charact[{extra}]'") from error


def client_error(name: str, error: Exception, remedy: str) -> UserError:
    """Return a client's error as one line with a remedy."""
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return UserError(f"{name} reports: {reason}: {remedy}")


def metrics(run: Run) -> dict[str, dict[int, float]]:
    """Return all series of a run: by tag of TensorBoard's Time Series, values by iteration, epoch or input size."""
    by_tag: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for point in scalars(run):
        by_tag[point.tag][int(point.step)] = point.value
    return dict(by_tag)


def case_parameters(run: Run) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of each case that are known, by the case's name."""
    return {entry["case"]: {name: entry[name] for name in _PARAMETERS if entry.get(name) not in (None, "")}
            for entry in run.manifest["cases"]}


def run_parameters(run: Run) -> dict[str, Parameter]:
    """Return the parameters of a run: `<parameter>` where all cases have the same value, else `<case>/<parameter>`.

    `options/<option>` has the options of the command.
    """
    cases = case_parameters(run)
    parameters: dict[str, Parameter] = {}
    for name in _PARAMETERS:
        values = {case: known[name] for case, known in cases.items() if name in known}
        if len(values) == len(cases) and len(set(values.values())) == 1:
            parameters[name] = next(iter(values.values()))
        else:
            parameters |= {f"{case}/{name}": value for case, value in values.items()}
    options = run.manifest.get("options") or {}
    return parameters | {f"options/{name}": value for name, value in options.items()
                    if isinstance(value, str | int | float) and value != ""}


def write_artifacts(run: Run, directory: Path) -> list[Path]:
    """Write the HTML report and the tables as Parquet into an empty directory; return the paths of the files."""
    page, tables = directory / "report.html", directory / "tables"
    write_text(page, report([run]))
    return [page, *(tables / name for name in export(run, "parquet", tables))]
