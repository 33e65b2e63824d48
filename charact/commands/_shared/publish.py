"""Shared by commands that write a record: save finished cases, render views, publish, report. Does not import torch."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.core.output import OUT, show, warn
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter

REPORT = "report.html"
NO_VIEWS = "CHARACT_NO_VIEWS"
"""Variable with which a run gets no views: another run would wait for them."""
_VIEWS_NICENESS = 19
"""So that the views of a run disturb the next one as little as possible."""

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt


@contextlib.contextmanager
def keeping_finished(writers: Sequence[RunWriter], remedy: str | None = None) -> Iterator[None]:
    """If the block fails, keep records with finished cases, and name the command that continues.

    Records without finished cases are removed.

    Published and discarded records are ignored. `remedy` names what is kept and how to continue, by default `charact
    recover`.
    """
    try:
        yield
    except BaseException as error:
        kept = []
        for writer in (writer for writer in writers if writer.directory.exists()):
            if writer.holds_nothing:
                writer.discard()
            else:
                writer.leave()
                kept.append(writer)
        if not kept:
            raise
        hint = remedy or ("finished cases are kept: "
                          f"{recover_command(writer.directory for writer in kept)} completes the run")
        if isinstance(error, UserError):
            raise UserError(f"{error}; {hint}") from error
        warn(hint)
        raise


def measure_and_publish(writer: RunWriter, measure: Callable[[], None], interrupt: "Interrupt", quiet: bool, *,
                        as_json: bool = False) -> int:
    """Write cases into a new record and publish it; return the exit status.

    The status is 0 if a case succeeded, 1 if none did, and 128 plus the signal if one ended the run.
    """
    with keeping_finished([writer]):
        measure()
        if interrupt.signal is not None and writer.holds_nothing:
            writer.discard()
            warn("interrupted before a case had finished: nothing is written")
            return 128 + interrupt.signal
        writer.close("complete" if interrupt.signal is None else "interrupted")
        any_ok = publish_and_report(writer, quiet, as_json=as_json)
    return 128 + interrupt.signal if interrupt.signal is not None else int(not any_ok)


def measure_resumably(writer: RunWriter, measure: Callable[[], None], interrupt: "Interrupt", quiet: bool, *,
                      command: str, unit: str, as_json: bool = False) -> int:
    """Write cases into a resumable record, and publish it when complete; return the exit status.

    `command` resumes the record, such as `train`; a `unit`, such as `epoch`, is kept once it is complete.
    """
    kept = f"complete {unit}s are kept: resume with {program()} {command} --resume {shlex.quote(str(writer.directory))}"
    with keeping_finished([writer], kept):
        measure()
        if interrupt.signal is not None:
            if writer.holds_nothing:
                writer.discard()
                warn(f"interrupted before the first {unit} was complete: nothing is written")
            else:
                warn(f"interrupted; {kept}")
            return 128 + interrupt.signal
        writer.close("complete")
        return int(not publish_and_report(writer, quiet, as_json=as_json))


def publish_and_report(writer: RunWriter, quiet: bool, *, as_json: bool = False) -> bool:
    """Publish a closed record with its views and report its outcome; return whether any case succeeded."""
    publish(writer, load_run(writer.directory))
    return report_outcome(load_run(writer.final), quiet, as_json=as_json)


def publish(writer: RunWriter, run: Run) -> None:
    """Write the views into the run's directory and publish it, even if rendering a view fails."""
    try:
        write_views(run)
    except UserError:
        raise
    except Exception:
        writer.publish()
        raise
    writer.publish()


def publish_before_views(writer: RunWriter, quiet: bool, waiting: int) -> bool:
    """Publish a closed record, report its outcome, and write its views when nobody waits any more.

    Returns whether any case succeeded. `waiting` is the write end of a pipe: another process waits for the byte that is
    written when the record is published.
    """
    writer.publish()
    run = load_run(writer.final)
    any_ok = report_outcome(run, quiet)
    OUT.flush()
    with contextlib.suppress(OSError):  # that process has ended
        os.write(waiting, b"\n")
    os.close(waiting)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # whoever reads the program's output must not wait for this process
        os.dup2(nowhere, stream)
    os.nice(_VIEWS_NICENESS)
    write_views(run)
    return any_ok


def has_views(directory: Path) -> bool:
    """Return whether a run has its report and its scalars."""
    return (directory / REPORT).exists() and any(directory.glob("events.out.tfevents.*"))


def write_views(run: Run) -> None:
    """Write the report and TensorBoard's scalars into a run's directory, unless `NO_VIEWS` is set."""
    if NO_VIEWS in os.environ:
        return
    from charact.views.html.report import report
    from charact.views.tensorboard.scalars import write_scalars

    write_text(run.path / REPORT, report([run]))
    write_scalars(run, run.path)


def recover_command(directories: Iterable[Path]) -> str:
    """Return the command that publishes hidden runs."""
    return f"{program()} recover {shlex.join(map(str, directories))}"


def report_outcome(run: Run, quiet: bool, *, as_json: bool = False) -> bool:
    """Print the outcome, failures even when quiet; return whether any case succeeded.

    On a terminal the summary has the failures, so they are not repeated. With `as_json`, standard output gets the JSON
    of `charact show` only.
    """
    failed = [entry for entry in run.entries if entry.status != "ok"]
    any_ok = len(failed) < len(run.entries)
    if as_json:
        from charact.views.export.run_summary import lines_of, run_summary

        show(*lines_of(run_summary(run)))
        return any_ok
    if not quiet:
        from charact.views.summary import summary  # takes 0.2 s, for which a program would wait
        from charact.views.terminal.renderer import drawn

        Console().print(drawn(summary(run, verbose=False)))
    if quiet or not OUT.isatty():
        for entry in failed:
            warn(f"{entry.case}: {entry.status} ({entry.reason})")
    show(f"Wrote {run.path}")
    if not quiet:
        soon = "" if has_views(run.path) else "  (in a few seconds)"
        show(f"  report       {run.path / REPORT}{soon}")
        show(f"  TensorBoard  {program()} tensorboard {run.path.parent}")
    return any_ok


def program() -> str:
    """Return the command that runs `charact` here: in an inactive virtual environment it is not on the PATH."""
    if shutil.which("charact"):
        return "charact"
    called = Path(sys.argv[0])
    return str(called) if called.name == "charact" else "python -m charact"
