"""What commands that write a record share: draw its views, let it be seen, say what came out. No torch in here."""

import shutil
import sys
from pathlib import Path

from charact.console import Console
from charact.errors import UserError
from charact.files import write_text
from charact.output import OUT, show, warn
from charact.store import Run, load_run
from charact.writer import RunWriter


def publish_and_tell(writer: RunWriter, quiet: bool) -> bool:
    """Publish a record that was closed, and say what came out; returns whether any case succeeded.

    Raises:
        UserError: the record cannot be written.
    """
    publish(writer, load_run(writer.directory))
    return tell(load_run(writer.final), quiet)


def publish(writer: RunWriter, run: Run) -> None:
    """Draw the views into the run's directory and let it be seen; a view that fails leaves the tables."""
    from charact.views.html import report
    from charact.views.tensorboard.scalars import write_scalars

    try:
        write_text(run.path / "report.html", report([run]))
        write_scalars(run, run.path)
    except UserError as error:
        writer.publish()
        raise UserError(f"{error}; the tables are in {writer.final}") from error
    except Exception:
        writer.publish()
        raise
    writer.publish()


def tell(run: Run, quiet: bool) -> bool:
    """Say what came out, failures even when quiet; returns whether any case succeeded.

    The summary holds the failures: on a terminal they are not told again.
    """
    from charact.views.terminal import summary

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
