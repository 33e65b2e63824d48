"""Supervisor process of a suite's run: it forks a worker, and another one whenever a brick has ended the worker.

The supervisor runs no brick itself, so that each worker starts clean: without threads, GPU context or corrupted memory.
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
    """Run the cases of a record and return the exit status.

    Args:
        directory: of the record.
        lock: file descriptor of the lock that the record's writer holds.
        events: file descriptor for reports.
        answers: file descriptor of the answers.
        parent: parent process, which started this one with SIGINT, SIGTERM and SIGHUP blocked.
    """
    die_with_parent(parent)
    gc.freeze()  # a worker's collector would touch all imported objects, and copy the shared pages
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
    """Forward signals to a worker until it ends, and return its exit status."""
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
    """Return the number of uses of each brick for each model with a composition in the directory."""
    compositions = load_compositions(private) if any(private.glob("*.json")) else []
    return [Counter(piece.brick for piece in composition.pieces) for composition in compositions]


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
