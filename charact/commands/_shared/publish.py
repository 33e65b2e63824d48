"""What commands that write a record share: keep what finished, draw the views, publish, report. No torch in here."""

import contextlib
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

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt


@contextlib.contextmanager
def keeping_finished(writers: Sequence[RunWriter], remedy: str | None = None) -> Iterator[None]:
    """When the block fails, keep records in which something has finished, and name the command that continues.

    Records in which nothing has finished are removed.

    Args:
        writers: of records that the block writes; published and discarded ones are left alone.
        remedy: what is kept and how to continue; by default `charact recover`.

    Raises:
        UserError: the block raised one; this one also says what is kept.
    """
    try:
        yield
    except BaseException as error:
        kept = [writer for writer in writers if _is_kept(writer)]
        if not kept:
            raise
        said = remedy or ("what had finished is kept: "
                          f"{recover_command(writer.directory for writer in kept)} makes a run of it")
        if isinstance(error, UserError):
            raise UserError(f"{error}; {said}") from error
        warn(said)
        raise


def _is_kept(writer: RunWriter) -> bool:
    """Whether a record of a block that failed is still hidden; it is removed where nothing in it has finished."""
    if not writer.directory.exists():
        return False
    if writer.holds_nothing:
        writer.discard()
        return False
    writer.leave()
    return True


def measure_and_publish(writer: RunWriter, measure: Callable[[], None], interrupt: "Interrupt", quiet: bool) -> int:
    """Write cases into a new record and publish it; returns the exit status.

    It is 0 where a case succeeded, 1 where none did, and 128 plus the signal where one ended the run.

    Raises:
        UserError: the record cannot be written; what had finished is kept.
    """
    with keeping_finished([writer]):
        measure()
        if interrupt.signal is not None and writer.holds_nothing:
            writer.discard()
            warn("interrupted before a case had finished: nothing is written")
            return 128 + interrupt.signal
        publish(writer, load_run(writer.close("complete" if interrupt.signal is None else "interrupted")))
    any_ok = tell(load_run(writer.final), quiet)
    if interrupt.signal is not None:
        return 128 + interrupt.signal
    return 0 if any_ok else 1


def measure_resumably(writer: RunWriter, measure: Callable[[], None], interrupt: "Interrupt", quiet: bool, *,
                      command: str, unit: str) -> int:
    """Write cases into a record that can be resumed, and publish it once it is complete; returns the exit status.

    Args:
        writer: of the record.
        measure: writes the cases.
        interrupt: what ends it early.
        quiet: whether little is printed.
        command: that resumes the record, such as `train`.
        unit: what is kept once it is complete, such as `epoch`.

    Raises:
        UserError: the record cannot be written; what had finished is kept.
    """
    kept = f"whole {unit}s are kept: resume with {program()} {command} --resume {shlex.quote(str(writer.directory))}"
    with keeping_finished([writer], kept):
        measure()
        if interrupt.signal is not None:
            if writer.holds_nothing:
                writer.discard()
                warn(f"interrupted before the first {unit} was complete: nothing is written")
            else:
                warn(f"interrupted; {kept}")
            return 128 + interrupt.signal
        publish(writer, load_run(writer.close("complete")))
    return 0 if tell(load_run(writer.final), quiet) else 1


def publish_and_tell(writer: RunWriter, quiet: bool) -> bool:
    """Publish a record that was closed, and say what came out; returns whether any case succeeded.

    Raises:
        UserError: the record cannot be written.
    """
    publish(writer, load_run(writer.directory))
    return tell(load_run(writer.final), quiet)


def publish(writer: RunWriter, run: Run) -> None:
    """Write the views into the run's directory and publish it, even if drawing a view fails.

    Raises:
        UserError: the disk is full; the directory stays hidden, and publishing can be tried again.
    """
    from charact.views.html.report import report
    from charact.views.tensorboard.scalars import write_scalars

    try:
        write_text(run.path / "report.html", report([run]))
        write_scalars(run, run.path)
    except UserError:
        raise
    except Exception:
        writer.publish()
        raise
    writer.publish()


def recover_command(directories: Iterable[Path]) -> str:
    """What to type to publish hidden runs."""
    return f"{program()} recover {shlex.join(map(str, directories))}"


def tell(run: Run, quiet: bool) -> bool:
    """Say what came out, failures even when quiet; returns whether any case succeeded.

    The summary holds the failures: on a terminal they are not told again.
    """
    from charact.views.terminal.summary import summary

    failed = [case for case in run.manifest["cases"] if case["status"] != "ok"]
    if not quiet:
        Console().print(summary(run))
    if quiet or not OUT.isatty():
        for case in failed:
            warn(f"{case['case']}: {case['status']} ({case['reason']})")
    show(f"Wrote {run.path}")
    if not quiet:
        show(f"  report       {run.path / 'report.html'}")
        show(f"  TensorBoard  {program()} tensorboard {run.path.parent}")
    return len(failed) < len(run.manifest["cases"])


def program() -> str:
    """What to type for `charact` here: in a virtual environment that is not active it is not on the PATH."""
    if shutil.which("charact"):
        return "charact"
    called = Path(sys.argv[0])
    return str(called) if called.name == "charact" else "python -m charact"
