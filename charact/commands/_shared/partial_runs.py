"""Reading a run that the user named: a whole one, or what one that is going on or was killed has measured so far."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from charact.measure.script.spans.event_log_to_record import read_spool, script_cases, script_options
from charact.record.reader import Run, arrow_schema, load_run


def read_run(path: Path, *, partial: bool) -> Run:
    """Read a run directory; of a watched program that has not ended the spool is read, too.

    Args:
        path: the directory that holds `run.json`.
        partial: whether a run that has not ended is read, too.

    Raises:
        UserError: there is no record, it is corrupt, unfinished (and `partial` is false), or of a newer schema.
    """
    run = load_run(path, partial=partial)
    options = script_options(run.manifest) if run.partial else None
    if options is None:
        return run
    watched = read_spool(path)
    cases = script_cases(watched, run.manifest["name"], options.script, options.skip, options.iterations,
                         options.passes)
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry, tables in cases:
        for table, some in tables.items():
            rows[table] += [{"case": entry["case"], **row} for row in some]
    frames = {table: pa.Table.from_pylist(all_of_it, schema=arrow_schema(table)).to_pandas()
              for table, all_of_it in rows.items()}
    return Run(path, run.manifest | {"cases": [entry for entry, _ in cases]}, partial=True, _tables=frames)
