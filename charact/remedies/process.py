"""Trials: a program runs in a fresh process with some remedies applied, for some iterations."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from charact.commands._shared.publish import NO_VIEWS
from charact.core.errors import UserError
from charact.core.files import write_text, writing
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.reader import Run, load_run
from charact.remedies.remedy import Setting, all_remedies
from charact.remedies.trial import TRIAL, Outcome, Plan

_GRACE_S = 5.0
"""Time that a process has to end after a signal (s)."""
_LONGEST_LINE = 160
"""Largest number of characters of a line in a failure's reason."""
_OWN = ("charact: ", "error: ", "Wrote ")
"""How lines of charact begin, which follow the program's."""
_SEED = 0


@dataclass(frozen=True)
class Trial:
    """A trial that ended: its run and its first losses, or why there is no run."""

    run: Run | None
    losses: tuple[float | None, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class Command:
    """A program to try remedies on.

    `kind` is the command of charact that measures it: run or profile. `words` are the program and its arguments.
    `stdin` is its whole input. `directory` is where it runs.
    """

    kind: str
    words: tuple[str, ...]
    stdin: bytes
    directory: Path

    def measured(self, options: Sequence[str], settings: Sequence[Setting], out: Path, limit_s: float) -> Trial:
        """Run the program with options of the charact command and remedies applied; the run is in a directory of `out`.

        A program that takes longer than `limit_s` is ended, and is a failure. What a failed one printed to its standard
        error is in `stderr.txt`.

        Raises:
            UserError: `out` cannot be written.
            KeyboardInterrupt: Ctrl-C; the program has been ended.
        """
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        plan, outcome, before = out / "plan.json", out / "outcome.json", set(out.iterdir())
        outcome.unlink(missing_ok=True)
        what = Plan([(setting.remedy, dict(setting.values)) for setting in settings], _SEED, outcome.name, os.getpid())
        write_text(plan, msgspec.json.encode(what).decode())
        environment = os.environ | {TRIAL: str(plan), NO_VIEWS: "1"}
        for setting in settings:
            environment |= all_remedies()[setting.remedy].environment(setting.values)
        # Words after a script are its own; a workload may have options of its own that these replace.
        words = [*options, *self.words] if self.kind == "run" else [*self.words, *options]
        command = [sys.executable, "-m", "charact.remedies.trial", self.kind, "--out", str(out), "--quiet", *words]
        status, error = _run(command, self.stdin, environment, self.directory, limit_s)
        facts = _outcome(outcome)
        runs = sorted(path for path in set(out.iterdir()) - before
                      if (path / "run.json").is_file() and not path.name.startswith(PARTIAL_PREFIX))
        if facts.unavailable is not None:
            return Trial(None, failure=facts.unavailable)
        if status != 0:
            write_text(out / "stderr.txt", error, force=True)
            return Trial(None, failure=_reason(status, error, limit_s))
        if not runs:
            write_text(out / "stderr.txt", error, force=True)
            return Trial(None, failure=_last_line(error) or "it wrote no run")
        return Trial(load_run(runs[-1]), tuple(facts.losses))


@contextmanager
def cleaned_up_on_signals() -> Iterator[None]:
    """End as after an error when a signal asks to end, so that processes and copies of trials are removed."""
    def leave(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _run(command: Sequence[str], stdin: bytes, environment: dict[str, str], directory: Path, limit_s: float
         ) -> tuple[int | None, str]:
    """Run a command; return its exit status, None if it was ended after `limit_s`, and its standard error."""
    # Files, since a process that the program left running would keep a pipe open.
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        source.write(stdin)
        source.seek(0)
        try:
            process = subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=errors,
                                       env=environment, cwd=directory, start_new_session=True)
        except OSError as error:
            raise UserError(f"cannot start {command[0]} ({os.strerror(error.errno or 0)})") from error
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
        errors.seek(0)
        return status, errors.read().decode(errors="replace")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process if it still runs, and then those that it started and left running."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _outcome(path: Path) -> Outcome:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except (OSError, msgspec.DecodeError):
        return Outcome()


def _reason(status: int | None, error: str, limit_s: float) -> str:
    if status is None:
        return f"it took longer than {limit_s:.0f} s and was ended"
    if status < 0:
        name = signal.Signals(-status).name
        return f"ended by {name}" + (": out of memory?" if name == "SIGKILL" else "")
    return _last_line(error) or f"it ended with status {status}"


def _last_line(error: str) -> str:
    """Return the program's exception; without one, its last line and the error of charact; empty without any."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    program = next((line for line in reversed(lines) if not line.startswith(_OWN)), "")
    own = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    if "Traceback (most recent call last):" in lines:
        own = ""
    notices = [line for line in lines if not line.startswith("Wrote ")]
    return "; ".join(_shortened(each) for each in (program, own) if each) or "".join(notices[-1:])


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
