"""One record of all ranks: each rank's part is completed when it ends, and the last one merges them."""

import contextlib
import shutil
import time
from pathlib import Path

from charact.commands._shared.publish import publish, publish_before_views, report_outcome
from charact.commands._shared.watched_program import add_cases_of_program
from charact.core.errors import UserError
from charact.core.output import warn
from charact.measure.script.spans.event_log_to_record import script_options
from charact.record.rank_merge import described, first_failure, merge_parts
from charact.record.rank_parts import Part, is_written, job_lock, job_of, parts_of
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter


def end_rank(directory: Path, *, quiet: bool, waiting: int | None = None) -> bool:
    """Complete the part of a rank; if it is the last of its job, merge all parts into one run.

    Args:
        directory: the part's hidden directory.
        quiet: whether output is reduced.
        waiting: write end of a pipe, see `publish_before_views`; None if no process waits.

    Returns:
        Whether the run, if it was merged, has a case that succeeded.
    """
    job = job_of(directory.absolute())
    assert job is not None
    complete_part(directory.absolute())
    with job_lock(job) as exists:
        if not exists:
            return True
        parts = parts_of(job)
        if len(parts) < _world_size(parts) or any(part.is_being_written for part in parts):
            return True  # a rank that ends later merges
        return _merge(job, quiet=quiet, waiting=waiting)


def merge_job(job: Path, *, quiet: bool) -> bool:
    """Merge the parts of a job whose ranks have all ended or were killed; return whether any case succeeded."""
    job = job.absolute()
    with job_lock(job) as exists:
        if not exists:
            raise UserError(f"{job} does not exist any more: its ranks' records were merged into a run next to it")
        running = [part.rank for part in parts_of(job) if part.is_being_written]
        if running:
            raise UserError(f"rank {', '.join(map(str, running))} of {job} is still running: wait for it, or end it")
        return _merge(job, quiet=quiet, waiting=None)


def merged(job: Path) -> Path:
    """Merge the parts of a job that has ended; return the run's directory."""
    before = set(job.absolute().parent.iterdir())
    merge_job(job, quiet=True)
    (new,) = (each for each in job.absolute().parent.iterdir() if each not in before and (each / "run.json").exists())
    return new


def complete_part(directory: Path) -> None:
    """Turn a rank's event log into its part, without views; nothing to do if another process does it or has done it."""
    writer = _reopened(directory)
    if writer is None:
        return
    try:
        if writer.manifest["status"] == "running":
            options = script_options(writer.manifest)
            assert options is not None
            status, nothing = add_cases_of_program(writer, options, "it was killed before its first iteration")
            if not writer.manifest["cases"]:
                writer.manifest["reason"] = nothing
            writer.close(status)
        writer.publish()
    except BaseException:
        if directory.exists():
            writer.leave()
        raise


def _reopened(directory: Path) -> RunWriter | None:
    """Return the writer of a part; None if another process completes it or has completed it.

    A process that asks whether a part is being written holds its lock for a moment.
    """
    for wait_s in (0.05, 0.1, 0.2, None):
        try:
            return RunWriter.reopen(directory)
        except UserError:
            if not directory.exists():
                return None
            if wait_s is None:
                if is_written(directory):
                    return None
                raise
            time.sleep(wait_s)
    return None


def _world_size(parts: list[Part]) -> int:
    """Return the number of ranks that the parts expect."""
    sizes = [1]
    for part in parts:
        with contextlib.suppress(UserError):  # it is reported when the parts are merged
            sizes.append(load_run(part.directory, partial=True).manifest.get("rank", {}).get("world_size", 1))
    return max(sizes)


def _merge(job: Path, *, quiet: bool, waiting: int | None) -> bool:
    """Complete the parts of killed ranks, merge all, and remove the merged parts; the job's lock is held.

    A part that cannot be read or completed is reported and stays where it is.
    """
    parts = _completed(job)
    if parts is None:
        return True
    ranks = [described(part, load_run(part.directory)) for part in parts]
    if not any(one["num_iterations"] for one in ranks):
        failed = first_failure(ranks)
        reasons = [f"rank {failed['rank']}: {failed['ending'] or 'killed'}"] if failed else sorted(
            {str(one["reason"]) for one in ranks})
        _remove(job, parts)
        raise UserError(f"no rank had an iteration to record: {'; '.join(reasons) or 'none had begun'}")
    writer = merge_parts(job.parent, parts)
    _remove(job, parts)
    run = load_run(writer.directory)
    _warn_of_problems(run)
    if waiting is not None:
        return publish_before_views(writer, quiet, waiting)
    publish(writer, run)
    return report_outcome(load_run(writer.final), quiet)


def _completed(job: Path) -> list[Part] | None:
    """Complete the parts of a job; return those that can be read, and print why the others cannot.

    None if another process has begun to complete one of them: it merges.
    """
    found = []
    for part in parts_of(job):
        try:
            if not part.has_ended:
                complete_part(part.directory)
            (now,) = (one for one in parts_of(job) if one.rank == part.rank)
            if not now.has_ended:
                return None
            if _is_readable(now):
                found.append(now)
        except UserError as error:
            warn(f"charact: rank {part.rank} is left out, and its part is kept: {error}")
    return found


def _is_readable(part: Part) -> bool:
    """Read a part with its tables."""
    run = load_run(part.directory)
    return all(run.table(table) is not None for table in run.manifest.get("tables", []))


def _remove(job: Path, parts: list[Part]) -> None:
    """Remove parts, and the job's directory if no other part is left in it."""
    for part in parts:
        shutil.rmtree(part.directory.parent, ignore_errors=True)
    if not any(job.glob("rank-*")):
        shutil.rmtree(job, ignore_errors=True)


def _warn_of_problems(run: Run) -> None:
    """Print which rank failed first and which are missing."""
    ranks = run.manifest["ranks"]
    failed = first_failure(ranks)
    if failed is not None:
        warn(f"charact: rank {failed['rank']} on {failed['hostname']} ended early: {failed['ending'] or 'killed'}")
    present = {one["rank"] for one in ranks}
    missing = sorted(set(range(run.manifest["world_size"])) - present)
    if missing:
        warn(f"charact: the record lacks rank {', '.join(map(str, missing))}: run charact in every rank")
