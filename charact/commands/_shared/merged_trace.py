"""Export of a run's traces as one file with a process row for each case."""

from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.record.reader import Run
from charact.traces.merge import Row, merge_traces

MERGED_FORMAT = "perfetto"


def export_merged(run: Run, target: Path | None, *, force: bool) -> str:
    """Write the traces of a run's cases into one file for Perfetto; return a line that names it.

    A case of a rank has the name of its rank. The traces are those in the run, or, of an imported run, the files from
    which it was imported.
    """
    path = target or Path(f"{run.run_id}.trace.json.gz")
    if path.exists() and not force:
        raise UserError(f"{path} exists: --force replaces it, --to names another")
    entries = run.manifest["cases"]
    found = {entry["case"]: trace for entry in entries if (trace := _trace(run, entry)) is not None}
    if not found:
        sources = [str(entry["source"]) for entry in entries if _is_imported(run) and entry.get("source")]
        remedy = (f"{sources[0]} is not there: run this in the directory of charact import" if sources
                  else "record them with --passes operators")
        raise UserError(f"{run.path} has no traces: {remedy}")
    rows = [Row(_name(entry), found[entry["case"]]) for entry in _in_order(entries) if entry["case"] in found]
    merge_traces(rows, path)
    lacking = [entry["case"] for entry in entries if entry["case"] not in found]
    without = f"; without {', '.join(lacking)}, which {'has' if len(lacking) == 1 else 'have'} no trace"
    return f"Wrote {path}: {', '.join(row.name for row in rows)}{without if lacking else ''}"


def _is_imported(run: Run) -> bool:
    return bool(run.manifest["options"].get("traces"))


def _trace(run: Run, entry: dict[str, Any]) -> Path | None:
    """Return the path of a case's trace; None if there is none."""
    own = run.trace(entry["case"])
    if own is not None or not _is_imported(run) or not entry.get("source"):
        return own
    source = Path(entry["source"])
    return source if source.is_file() else None


def _in_order(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: -1 if entry.get("rank") is None else entry["rank"])


def _name(entry: dict[str, Any]) -> str:
    return str(entry["case"]) if entry.get("rank") is None else f"rank {entry['rank']} ({entry['case']})"
