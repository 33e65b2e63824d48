"""Program of the process that runs bricks: it forks a worker, and another one after each that a brick has ended.

It runs no brick itself, so that a worker is as good as new: no threads, no GPU, and no memory that a brick has broken.
"""

import gc
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.index import load_suite
from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.interrupt import SIGNALS, Interrupt
from charact.measure.bricks.allocator_settings import set_recorded_threads
from charact.measure.bricks.crash_notes import Crashes, Note
from charact.measure.bricks.isolated_run import Report, die_with_parent
from charact.measure.bricks.suite_run import run_bricks
from charact.measure.passes.timing import StopRule
from charact.record.redaction import expanded_path
from charact.record.writer import RunWriter


def main(directory: Path, lock: int, events: int, answers: int, parent: int) -> int:
    """Run the cases of a record; returns the exit status.

    Args:
        directory: of the record.
        lock: descriptor of the lock that its writer holds.
        events: descriptor to report to.
        answers: descriptor of the answers.
        parent: process that started this one, with SIGINT, SIGTERM and SIGHUP blocked.
    """
    die_with_parent(parent)
    gc.freeze()  # the collector of a worker would walk all that was imported, and so copy the memory that they share
    crashes = Crashes(Note())
    assert crashes.note is not None
    while True:
        crashes.note.clear()
        supervisor = os.getpid()
        worker = os.fork()
        if worker == 0:
            _run_and_exit(directory, lock, Report(events, answers), crashes, supervisor)
        ended = _waited_for(worker)
        if os.WIFEXITED(ended):
            return os.WEXITSTATUS(ended)
        running = crashes.note.read()
        if running is None or running in crashes.signals:
            return 128 + os.WTERMSIG(ended)
        crashes.signals[running] = os.WTERMSIG(ended)


def _waited_for(worker: int) -> int:
    """The status that a worker ends with; until then signals are passed on to it."""
    while True:
        number = signal.sigwait({*SIGNALS, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(worker, number)
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid and not os.WIFSTOPPED(status):
            return status


def _run_and_exit(directory: Path, lock: int, report: Report, crashes: Crashes, supervisor: int) -> None:
    status = 1
    try:
        die_with_parent(supervisor)
        with Interrupt() as interrupt:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, signal.SIGCHLD})
            try:
                _run(directory, lock, report, interrupt, crashes)
                if interrupt.signal is not None:
                    report.send("signal", interrupt.signal)
            except UserError as error:
                report.send("refused", str(error)[:3000])
        status = 0
    except BaseException:
        warn(*traceback.format_exc().splitlines())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _run(directory: Path, lock: int, report: Report, interrupt: Interrupt, crashes: Crashes) -> None:
    writer = RunWriter.reopen(directory, lock)
    options = writer.manifest["options"]
    with limited_to(options.get("max_bytes")):  # records of earlier versions lack it
        suite = load_suite(expanded_path(options["suite"]))
        if suite.digest != options["suite_digest"]:
            raise UserError(f"{options['suite']} is not the suite that the run began with: run it again")
        set_recorded_threads(options["threads"])
        share_frac = options.get("share_frac", 1.0)
        models = _known_models(expanded_path(options["compositions"])) if share_frac < 1 else []
        rule = StopRule(options["precision_target_frac"], options["max_rounds"], options["max_seconds"])
        for number, (mode, precision) in enumerate(options["cases"], start=1):
            run_bricks(suite, mode, precision, torch.device(options["device"]), rule, writer, report, interrupt,
                       options["batch_sizes"], options["method"], (number, len(options["cases"])), share_frac, models,
                       options["precisions"], crashes)
            if interrupt.signal is not None:
                return


def _known_models(private: Path) -> list[Mapping[str, int]]:
    """How often each model whose composition is here uses which bricks; none where there are no compositions."""
    compositions = load_compositions(private) if any(private.glob("*.json")) else []
    return [Counter(piece.brick for piece in composition.pieces) for composition in compositions]


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
