"""What `charact bricks run` does with its options: time a suite into a record, and go on with one."""

from pathlib import Path
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.brick import runs_as
from charact.bricks.suite.index import Suite, load_suite
from charact.commands._shared.ceilings import recorded_ceilings
from charact.commands._shared.publish import keeping_finished, measure_resumably, publish_and_report
from charact.commands._shared.run_cases import open_record
from charact.commands.bricks.verify import is_of_this_machine
from charact.core.console import Console
from charact.core.errors import UserError
from charact.execution.interrupt import Interrupt
from charact.execution.precision import refusal
from charact.machine.facts import resolve_device
from charact.measure.bricks.isolated_run import run_isolated
from charact.record.manifest import check_holds
from charact.record.reader import load_run
from charact.record.redaction import expanded_path
from charact.record.writer import RunWriter
from charact.views.terminal.progress import BrickProgress

Options = dict[str, Any]
"""What the user said, as the manifest keeps it."""


def start(path: Path, options: Options, out: Path, name: str | None, threads: int | None, quiet: bool,
          interrupt: Interrupt) -> int:
    """Time a suite into a new record below `out`; returns the exit status.

    Raises:
        UserError: there is no suite, it lacks what was asked for, or the record cannot be written.
    """
    suite, device = load_suite(path), resolve_device(options["device"])
    cases = _cases(suite, options, device)
    if options["share_frac"] < 1 and any(mode == "train" for mode, _ in cases):
        raise UserError("times of a training's bricks cannot be predicted from others: add --mode infer, or leave "
                        "--share out")
    # What "auto" was: elsewhere it may be another device.
    kept = options | {"device": str(device), "cases": cases, "suite": str(path.absolute()),
                      "suite_digest": suite.digest, "compositions": str(suite.private)}
    writer = open_record(out, name or f"bricks-{suite.name}", kept, threads)
    with keeping_finished([writer]):
        writer.manifest |= recorded_ceilings(writer.manifest["machine"]["fingerprint"], [str(device)])
    return _run(writer, quiet, interrupt)


def go_on(directory: Path, quiet: bool, interrupt: Interrupt) -> int:
    """Go on with a run that was killed or interrupted; returns the exit status.

    Raises:
        UserError: the directory holds no such run, or one of another machine, another process is writing it, or the
            suite is not the same.
    """
    begun = load_run(directory, partial=True)
    if "suite_digest" not in begun.manifest.get("options", {}):
        raise UserError(f"{directory} is not a run of a suite: --resume takes what charact bricks run left unfinished")
    writer = RunWriter.reopen(directory)
    if not is_of_this_machine(begun):
        raise UserError(f"{directory} was begun on another machine or with another PyTorch, whose times are not to be "
                        "mixed: go on there, or run the suite here anew")
    if writer.manifest["status"] != "running":  # killed when only its views and its name were left to do
        writer.close("complete")
        return 0 if publish_and_report(writer, quiet) else 1
    check_holds(writer.manifest, directory, options=(
        "suite", "threads", "device", "cases", "precision_target_frac", "max_rounds", "max_seconds", "method"))
    options = writer.manifest["options"]
    suite = load_suite(expanded_path(options["suite"]))
    if suite.digest != options["suite_digest"]:
        raise UserError(f"{options['suite']} is not the suite that {directory} began with: run it anew")
    return _run(writer, quiet, interrupt)


def _cases(suite: Suite, options: Options, device: torch.device) -> list[list[str]]:
    """Modes, and precisions that bricks run in: those that were asked for, else all that the device has.

    Raises:
        UserError: the suite lacks what was asked for, or the device does.
    """
    asked = (options["modes"], options["precisions"], options["batch_sizes"])
    there = sorted({(entry["mode"], precision, size) for entry in suite.bricks.values()
                    for precision in entry["precisions"] for size in entry["batch_sizes"]})  # fmt: skip
    fitting = [told for told in there
               if all(wanted is None or each in wanted for each, wanted in zip(told, asked, strict=True))]
    lacks = any(set(wanted or ()) - {told[column] for told in fitting} for column, wanted in enumerate(asked))
    cases = list(dict.fromkeys((mode, runs_as(precision)) for mode, precision, _ in fitting))
    if lacks or not cases:
        known = ", ".join(f"{mode} {precision} at batch size {size}" for mode, precision, size in there)
        raise UserError(f"{suite.path} holds no bricks of what was asked for (it has {known}): generate them with "
                        "charact bricks generate, or ask for less")
    refusals = [refusal(precision, device) for _, precision in cases]
    if all(refusals):
        raise UserError(str(refusals[0]))
    return [list(case) for case, reason in zip(cases, refusals, strict=True) if reason is None]


def _run(writer: RunWriter, quiet: bool, interrupt: Interrupt) -> int:
    console = Console(stderr=True)

    def measure() -> None:
        with BrickProgress(console, enabled=console.is_terminal and not quiet) as progress:
            run_isolated(writer, progress, interrupt)

    return measure_resumably(writer, measure, interrupt, quiet, command="bricks run", unit="round")
