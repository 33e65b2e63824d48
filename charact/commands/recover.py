"""`charact recover`."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.output import warn

_NOTHING = "{} had no measurements, and is removed"


def command(
    partial: Annotated[list[Path], typer.Argument(
        metavar="RUN", help="Hidden directories of killed runs: runs/.partial-...",
        autocompletion=completion.partial_runs)],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the runs' paths only.")] = False,
    waiting: Annotated[int | None, typer.Option(
        "--waiting", hidden=True, help="Descriptor to which a byte is written when the record is published."
    )] = None,
) -> int:
    """Complete records of killed runs, and draw missing reports.

    \b
      charact recover runs/.partial-*
    """  # noqa: D301  (click wants the character itself)
    from charact.execution.interrupt import Interrupt

    any_ok, errors = False, []
    with Interrupt() as interrupt:
        from charact.commands._shared.publish import recover_command
        from charact.commands._shared.runs import check_unfinished
        from charact.record.rank_parts import job_of

        for number, directory in enumerate(partial):
            try:
                if job_of(directory.absolute()) is None:  # the parts of ranks may have been merged in the meantime
                    check_unfinished([directory])
                with interrupt.allowed():
                    any_ok |= _recover(directory, quiet, waiting)
            except UserError as error:  # a run that is still running must not prevent the others
                errors.append(str(error))
            except KeyboardInterrupt:
                left = [path for path in partial[number:] if path.exists()]
                if left:
                    warn(f"interrupted, and nothing is lost: continue with {recover_command(left)}")
                return 128 + (interrupt.signal or signal.SIGINT)
    if errors:
        raise UserError("; ".join(errors))
    return 0 if any_ok else 1


def _recover(directory: Path, quiet: bool, waiting: int | None = None) -> bool:
    """Complete a partial run, or add the views to a run without them; return whether any of its cases succeeded."""
    from charact.commands._shared.publish import (
        has_views,
        publish_and_report,
        publish_before_views,
        recover_command,
        report_outcome,
        write_views,
    )
    from charact.commands._shared.ranks import add_cases_of_program, end_rank, merge_job
    from charact.measure.script.spans.event_log_to_record import script_options
    from charact.record.in_progress import PARTIAL_PREFIX, remove_unbegun
    from charact.record.rank_parts import is_job, job_of
    from charact.record.reader import load_run
    from charact.record.writer import RunWriter

    if (job := job_of(directory.absolute())) is not None:
        try:
            return end_rank(directory, quiet=quiet, waiting=waiting)
        except UserError as error:
            if not job.exists():
                raise
            raise UserError(f"{error}; what the ranks finished is kept: {recover_command([job])} completes the run"
                            ) from error
    if is_job(directory):
        return merge_job(directory, quiet=quiet)
    if remove_unbegun(directory):
        raise UserError(_NOTHING.format(directory))
    whole = directory.resolve()
    if not whole.name.startswith(PARTIAL_PREFIX) and not has_views(whole):
        run = load_run(whole)
        write_views(run)
        return report_outcome(run, quiet)
    writer = RunWriter.reopen(directory)
    try:
        if writer.manifest["status"] == "running":
            status, nothing = "interrupted", _NOTHING.format(writer.directory)
            if (options := script_options(writer.manifest)) is not None:
                status, nothing = add_cases_of_program(writer, options, nothing)
            if writer.holds_nothing:
                writer.discard()
                raise UserError(nothing)
            writer.close(status)
        if waiting is not None:
            return publish_before_views(writer, quiet, waiting)
        return publish_and_report(writer, quiet)
    except BaseException as error:
        if not writer.directory.exists():
            raise
        writer.leave()
        if isinstance(error, UserError):
            again = recover_command([directory])
            raise UserError(f"{error}; nothing is removed: try again with {again}") from error
        raise
