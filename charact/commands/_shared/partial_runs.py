"""Reading a run given by the user: finished, still running, or killed."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from charact.measure.script.spans.event_log_to_record import read_event_log, script_cases, script_options
from charact.record.rank_parts import is_job
from charact.record.reader import Run, frame_of, load_run


def read_run(path: Path, *, partial: bool) -> Run:
    """Read a run directory; for an unfinished watched program, read its event log too.

    The parts of a job's ranks that have all ended, but were not merged, are merged first.

    Args:
        path: the directory that contains `run.json`.
        partial: whether to read an unfinished run.
    """
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
            rows[table] += [{"case": entry["case"], **row} for row in some]
    frames = {table: frame_of(table, all_of_it) for table, all_of_it in rows.items()}
    return Run(path, run.manifest | {"cases": [entry for entry, _ in cases]}, partial=True, _tables=frames)
