"""Merging of the parts of a job's ranks into one run."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from charact.record.rank_parts import STOPPED_MEASURING, Part
from charact.record.reader import Run, load_run
from charact.record.schema import TABLES, Rows
from charact.record.tables import read_table
from charact.record.writer import RunWriter

_OWN = {"schema_version", "run_id", "name", "status", "cases", "tables", "ended", "hostname", "rank", "ending",
        "traceback", "ended_s", "reason", "hung", "table_checksums", "checksum", "flushes", "event_log_damage"}
"""Facts of a part that its run has for itself; the others are those of the first rank."""
CONSEQUENCES = ("Connection closed by peer", "Connection reset", "ended by SIGTERM", "ended by SIGINT",
                "Broken pipe", "Socket Timeout", "NCCL communicator was aborted", "Connection refused")
"""Texts of ends that another rank's end caused."""


def merge_parts(out: Path, parts: Sequence[Part]) -> RunWriter:
    """Write a run with the cases of all parts into `out`, not published yet; return its writer.

    Each case gets the suffix `-rank<number>` and the facts rank, local_rank, world_size and hostname. The run's facts
    are those of the lowest rank. `ranks` describes each part.
    """
    runs = [load_run(part.directory) for part in parts]
    first = runs[0].manifest
    ranks = [described(part, run) for part, run in zip(parts, runs, strict=True)]
    facts = {name: value for name, value in first.items() if name not in _OWN}
    failed = first_failure(ranks)
    ending = ranks[0]["ending"] if failed is None else f"rank {failed['rank']}: {failed['ending'] or 'killed'}"
    facts |= {"ranks": ranks, "world_size": max(rank["world_size"] for rank in ranks), "ending": str(ending),
              "event_log_damage": [damage for run in runs for damage in run.manifest.get("event_log_damage", [])]}
    # The processor time of ranks on the same host is no time of other programs.
    uses = [(run.manifest.get("hostname"), number, entry.passes.timing.core_use)
            for number, run in enumerate(runs) for entry in run.entries[:1]]
    rates = {number: use.processor_s / use.length_s for _, number, use in uses if use}
    for host, number, use in uses:
        if use:
            siblings = sum(rates.get(other, 0.0) for place, other, _ in uses if place == host and other != number)
            use.others_s = max(0.0, use.others_s - siblings * use.length_s)
    writer = RunWriter(out, str(first["name"]), facts)
    try:
        for part, run in zip(parts, runs, strict=True):
            identity = run.manifest.get("rank", {})
            for entry in run.entries:
                of_rank = msgspec.structs.replace(
                    entry, case=f"{entry.case}-rank{part.rank}", rank=part.rank, local_rank=identity.get("local_rank"),
                    world_size=identity.get("world_size"), hostname=run.manifest.get("hostname"))
                writer.add_case(of_rank, {table: rows for table in TABLES if (rows := _rows(run, table, entry.case))})
                if (trace := run.trace(entry.case)) is not None:
                    shutil.copyfile(trace, writer.trace_path(of_rank.case))
        writer.close("complete" if all(run.manifest["status"] == "complete" for run in runs) else "interrupted")
    except BaseException:
        writer.discard()
        raise
    return writer


def first_failure(ranks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the rank whose end caused the others' ends; None if every rank came to its end.

    It is the first that ended with an error of its own; errors such as a closed connection are consequences.
    """
    failed = [rank for rank in ranks if rank["traceback"] or rank["ending"] in (None, "killed")
              or (str(rank["ending"]).startswith(("ended by", "os._exit(", "sys.exit(", STOPPED_MEASURING))
                  and rank["ending"] not in ("sys.exit(0)", "sys.exit(None)", "os._exit(0)"))]

    def order(rank: dict[str, Any]) -> tuple[bool, bool, float]:
        text = f"{rank['ending']} {rank['traceback'] or ''}"
        return any(part in text for part in CONSEQUENCES), rank["ended_s"] is None, rank["ended_s"] or 0.0

    return min(failed, key=order, default=None)


def described(part: Part, run: Run) -> dict[str, Any]:
    """Return what the merged run says of a rank."""
    facts, identity = run.manifest, run.manifest.get("rank", {})
    timed = [entry.passes.timing.num_iterations or 0 for entry in run.entries]
    return {
        "rank": part.rank, "local_rank": identity.get("local_rank"), "world_size": identity.get("world_size", 1),
        "hostname": facts.get("hostname"), "num_iterations": sum(timed), "ending": facts.get("ending"),
        "traceback": facts.get("traceback"), "ended_s": facts.get("ended_s"), "reason": facts.get("reason"),
        "hung": facts.get("hung"),
    }


def _rows(run: Run, table: str, case: str) -> Rows:
    """Return the rows of a case, without the column `case`."""
    path = run.path / f"{table}.parquet"
    if not path.exists():
        return []
    rows = read_table(path, table, (run.checksums or {}).get(table))
    of_case: Rows = rows.filter(pc.equal(rows["case"], case)).drop_columns(["case"]).to_pylist()
    return of_case
