"""Records of watched programs, from their event logs.

Each rank's part is completed when it ends, and the last one merges them into one record of all ranks.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from charact.commands._shared.publish import publish, publish_before_views, report_outcome
from charact.core.errors import UserError
from charact.core.output import warn
from charact.measure.script.spans.event_log_to_record import ScriptOptions, script_options
from charact.record.rank_merge import described, first_failure, merge_parts
from charact.record.rank_parts import Part, is_written, job_lock, job_of, parts_of, stopped
from charact.record.reader import load_run
from charact.record.writer import RunWriter

_BLIND = ("called no model of PyTorch outside of fully compiled functions, so there is nothing to report: run it "
          "without torch.compile, or name its phases with charact.Profiler")
_NO_MODEL = "called no model of PyTorch in the watched thread, so there is nothing to report"
_ELSEWHERE = (f"{_NO_MODEL}. charact.Profiler watches another thread, charact run another process (torchrun "
              "--no-python charact run train.py)")
_WITHOUT_FAILURE = ("to its end", "sys.exit(0)", "sys.exit(None)")
"""Endings of programs that did all that they were to do."""


def _facts(hostname: str, devices: list[str], of_torch: dict[str, Any] | None, ranks: set[tuple[int, str]],
           ) -> dict[str, Any]:
    """Return facts of the machine, its ceilings and its software, if the program ran on this machine.

    If its process recorded no facts of PyTorch, PyTorch is imported for them. `ranks` has the number of ranks and the
    backend of its collectives, if there are any.
    """
    if hostname != os.uname().nodename:
        warn(f"charact: this is not {hostname}, where the program ran: the record has no facts of the machine")
        return {}
    from charact.machine.ceilings_cache import best_collectives, cached_ceilings
    from charact.machine.facts import machine_facts, software_facts, torch_facts

    if of_torch is None:
        import torch

        of_torch = torch_facts() | {"num_threads": torch.get_num_threads()}
    machine, software = machine_facts(of_torch), software_facts(of_torch)
    return {"machine": machine, "software": software,
            **cached_ceilings(machine["fingerprint"], software["torch"], of_torch["num_threads"], devices),
            **(best_collectives(machine["fingerprint"], software["torch"], ranks) if ranks else {})}


def add_cases_of_program(writer: RunWriter, options: ScriptOptions, nothing: str) -> tuple[str, str]:
    """Add the event log of a watched program to its record; return the run's status, and a message if it is empty."""
    from charact.measure.script.spans.blind_spots import unwatched
    from charact.measure.script.spans.event_log_reader import read_event_log
    from charact.measure.script.spans.event_log_to_record import script_cases
    from charact.record.in_progress import TRACES

    watched = read_event_log(writer.directory)
    ending = watched.ending or stopped(writer.directory) or "killed"
    if "rank" in writer.manifest:
        end = watched.last("end")
        writer.manifest |= {"ending": ending, "traceback": end.get("traceback"), "ended_s": end.get("time_s"),
                            "hung": watched.last("hung").get("text")}
    cases = script_cases(watched, writer.manifest["name"], options.script, options.skip, options.iterations,
                         options.passes)
    for damage in watched.damage.values():
        warn(f"charact: {writer.directory}: {damage}")
    if watched.damage and not cases:
        raise UserError(f"no iteration can be read from the damaged event log in {writer.directory}")
    if cases:
        backend = watched.arrivals.backend
        ranks = {(writer.manifest["rank"]["world_size"], backend)} if "rank" in writer.manifest and backend else set()
        writer.manifest |= {"ending": ending,
                            "event_log_damage": [damage._asdict() for damage in watched.damage.values()],
                            **_facts(writer.manifest["hostname"], [entry.device for entry, _ in cases],
                                     watched.last("torch").get("facts"), ranks)}
        if "counters" in options.passes or any(tables.get("counters") for _, tables in cases):
            from charact.measure.counters import described  # imports PyTorch

            writer.manifest["counters"] = described()
        for entry, tables in cases:
            writer.add_case(entry, tables)
        evaluated = [entry.case for entry, _ in cases[1:]
                     if entry.mode == "infer" and entry.passes.operators.status == "ok"]
        for case, path in zip([cases[0][0].case, next(iter(evaluated), None)], TRACES.values(), strict=True):
            trace = writer.directory / path
            if case is None:
                trace.unlink(missing_ok=True)
            elif trace.exists():
                trace.rename(writer.trace_path(case))
    if watched.ending is None:
        return "interrupted", nothing
    if watched.iterations:
        nothing = (f"{options.script} ended after {len(watched.iterations)} iterations, which --skip leaves out: "
                   "give a smaller number")
    elif ending not in _WITHOUT_FAILURE:
        nothing = f"{options.script} ended before its first iteration did, so there is nothing to report: {ending}"
    else:
        elsewhere = "; ".join(unwatched(
            watched.total("unwatched", "children"), watched.total("unwatched", "threads")))
        nothing = f"{options.script} {_BLIND if watched.totals.compiled_whole else _ELSEWHERE}"
        if elsewhere:
            nothing = f"{options.script} {_NO_MODEL}; {elsewhere}"
    return "complete", nothing


def end_rank(directory: Path, *, quiet: bool, waiting: int | None = None) -> bool:
    """Complete the part of a rank; if it is the last of its job, merge all parts into one run.

    `waiting` is the write end of a pipe, see `publish_before_views`.

    Returns:
        Whether the run, if it was merged, has a case that succeeded.
    """
    job = job_of(directory.absolute())
    assert job is not None
    complete_part(directory.absolute())
    with job_lock(job) as exists:
        if not exists:
            return True
        parts, world_size = parts_of(job), 1
        for part in parts:
            with contextlib.suppress(UserError):  # it is reported when the parts are merged
                manifest = load_run(part.directory, partial=True).manifest
                world_size = max(world_size, manifest.get("rank", {}).get("world_size", 1))
        if len(parts) < world_size or any(part.is_being_written for part in parts):
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


def _merge(job: Path, *, quiet: bool, waiting: int | None) -> bool:
    """Complete the parts of killed ranks, merge all, and remove the merged parts; the job's lock is held.

    A part that cannot be read or completed is reported and stays where it is.
    """
    parts = _completed(job)
    if parts is None:
        return True
    ranks = [described(part, load_run(part.directory)) for part in parts]
    if not any(rank["num_iterations"] for rank in ranks):
        failed = first_failure(ranks)
        reasons = [f"rank {failed['rank']}: {failed['ending'] or 'killed'}"] if failed else sorted(
            {str(rank["reason"]) for rank in ranks})
        _remove(job, parts)
        raise UserError(f"no rank had an iteration to record: {'; '.join(reasons) or 'none had begun'}")
    writer = merge_parts(job.parent, parts)
    _remove(job, parts)
    run = load_run(writer.directory)
    failed = first_failure(run.manifest["ranks"])
    if failed is not None:
        warn(f"charact: rank {failed['rank']} on {failed['hostname']} ended early: {failed['ending'] or 'killed'}")
    missing = sorted(set(range(run.manifest["world_size"])) - {rank["rank"] for rank in run.manifest["ranks"]})
    if missing:
        warn(f"charact: the record lacks rank {', '.join(map(str, missing))}: run charact in every rank")
    if waiting is not None:
        return publish_before_views(writer, quiet, waiting)
    publish(writer, run)
    return report_outcome(load_run(writer.final), quiet)


def _completed(job: Path) -> list[Part] | None:
    """Complete the parts of a job; return those that can be read, and print why the others cannot.

    None if another process has begun to complete one of them: it merges.
    """
    completed = []
    for part in parts_of(job):
        try:
            if not part.has_ended:
                complete_part(part.directory)
            (now,) = (other for other in parts_of(job) if other.rank == part.rank)
            if not now.has_ended:
                return None
            run = load_run(now.directory)
            for table in run.manifest.get("tables", []):
                run.table(table)  # raises an error if it cannot be read
            completed.append(now)
        except UserError as error:
            warn(f"charact: rank {part.rank} is left out, and its part is kept: {error}")
    return completed


def _remove(job: Path, parts: list[Part]) -> None:
    for part in parts:
        shutil.rmtree(part.directory.parent, ignore_errors=True)
    if not any(job.glob("rank-*")):
        shutil.rmtree(job, ignore_errors=True)
