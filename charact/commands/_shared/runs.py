"""Runs and groups of runs, as the user names them: finished, still running, or killed."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charact.commands._shared.turns import read_turns
from charact.core.errors import UserError
from charact.core.output import warn
from charact.core.text import label
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.published import PREFIX, reference, reference_names

if TYPE_CHECKING:
    from charact.analysis.compare import Group
    from charact.record.reader import Run

_KINDS = "a run directory, a directory of runs, or reference:NAME"


def read_sides(texts: list[str], on_run: "Callable[[Run], object]" = lambda run: None, *,
               fewest: int = 2) -> "list[Group]":
    """Read the groups of runs that the user named, `fewest` or more; equal labels are numbered.

    `on_run` is called each time after the tables of a run are read.
    """
    from charact.analysis.compare import Group
    from charact.record.presentable import presentable

    if len(texts) < fewest:
        raise UserError("give at least two groups of runs, as in `charact compare runs/before runs/after`: each is "
                        f"{_KINDS} ({', '.join(reference_names())})")
    named = [(label(name), runs) for name, runs in map(_read, texts)]
    times = Counter(name for name, _ in named)
    seen: Counter[str] = Counter()
    places = [place for _, _, place in map(_split, texts)]
    turns = read_turns([Path(place) for place in places if not place.startswith(PREFIX)])
    groups = []
    for name, runs in named:
        seen[name] += 1
        numbered = f"{name} ({seen[name]})" if times[name] > 1 else name
        groups.append(Group(numbered, tuple(presentable(run) for run in runs), on_run=on_run, turns=turns))
    return groups


def check_unfinished(paths: list[Path]) -> None:
    """Check that the directories of unfinished runs exist."""
    for path in (path for path in paths if not os.path.lexists(path)):
        there = sorted(str(each) for each in path.parent.glob(f"{PARTIAL_PREFIX}*"))
        what = "unfinished are " + ", ".join(there) if there else f"{path.parent} has no unfinished run" \
            if path.parent.is_dir() else f"there is no directory {path.parent}"
        raise UserError(f"{path} does not exist: {what}")


def finished_runs(path: Path) -> list[Path]:
    """Return the finished runs in a directory, sorted by name; a run is returned itself."""
    from charact.record.runs import run_directories

    if not path.is_dir() or (path / "run.json").exists() or path.name.startswith(PARTIAL_PREFIX):
        return [path]
    finished = [each for each in run_directories(path) if not each.name.startswith(PARTIAL_PREFIX)]
    if not finished:
        raise UserError(f"{path} has no finished run: name a run directory, or make one as in charact profile mlp")
    return sorted(finished, key=lambda each: each.name)


def _read(text: str) -> "tuple[str, tuple[Run, ...]]":
    """Return label and runs of `PATH`, `NAME=PATH`, `reference:NAME` or `NAME=reference:NAME`."""
    label, equals, place = _split(text)
    if equals and not (label and place):
        raise UserError(f"'{text}': write a label as in before=runs/20261121-100000-resnet50-0a1b2c")
    if not place:
        raise UserError(f"a group of runs is empty: name {_KINDS}")
    if place.startswith(PREFIX):
        run = reference(place.removeprefix(PREFIX))
        return label or run.run_id, (run,)
    path = Path(place)
    try:
        return label or path.resolve().name, _runs_at(path)
    except OSError as error:
        raise UserError(f"{place[:100]} cannot be read ({(error.strerror or str(error)).lower()}): give {_KINDS}"
                        ) from error  # fmt: skip


def _split(text: str) -> tuple[str, str, str]:
    """Return label, equals sign and path; the first two are empty without a label.

    A path may contain "=": then it exists, or the text before is not a plain name.
    """
    label, equals, place = text.partition("=")
    return ("", "", text) if not equals or "/" in label or os.path.exists(text) else (label, equals, place)


def _runs_at(path: Path) -> "tuple[Run, ...]":
    """Return the run of a directory, or every finished run in it; unreadable ones are reported and left out."""
    from charact.record.reader import load_run
    from charact.record.runs import run_directories

    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {problem}: give {_KINDS}")
    if (path / "run.json").exists() or path.name.startswith(PARTIAL_PREFIX):
        return (load_run(path),)
    problems: list[str] = []
    found = run_directories(path, lambda error: problems.append(f"{error.filename}: {(error.strerror or '').lower()}"))
    finished = [each for each in found if not each.name.startswith(PARTIAL_PREFIX)]
    if problems and not finished:
        raise UserError(f"{path} has no run that can be read: {problems[0]}")
    if not finished:
        raise UserError(f"{path} has no finished run: give {_KINDS}")
    runs = []
    for each in finished:
        try:
            runs.append(load_run(each))
        except UserError as error:
            problems.append(str(error))
    if not runs:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{path} has no run that can be read: {problems[0]}{more}")
    for problem in problems:
        warn(f"warning: a run of {path} is left out: {problem}")
    return tuple(runs)


def read_run(path: Path, *, partial: bool) -> "Run":
    """Read a run directory; for an unfinished watched program, read its event log too.

    The parts of a job's ranks that have all ended, but were not merged, are merged first.
    """
    import msgspec

    from charact.measure.script.spans.event_log_reader import read_event_log
    from charact.measure.script.spans.event_log_to_record import script_cases, script_options
    from charact.record.rank_parts import is_job
    from charact.record.reader import Run, load_run
    from charact.record.tables import frame_of

    if is_job(path):
        from charact.commands._shared.ranks import merged

        path = merged(path)
    run = load_run(path, partial=partial)
    options = script_options(run.manifest) if run.partial else None
    if options is None:
        return run
    watched = read_event_log(path)
    cases = script_cases(watched, run.manifest["name"], options.script, options.skip, options.iterations,
                         options.passes)
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry, tables in cases:
        for table, some in tables.items():
            rows[table] += [{"case": entry.case, **row} for row in some]
    frames = {table: frame_of(table, all_of_it) for table, all_of_it in rows.items()}
    entries = [msgspec.to_builtins(entry) for entry, _ in cases]
    return Run(path, run.manifest | {"cases": entries}, partial=True, _tables=frames)
