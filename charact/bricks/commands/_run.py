"""`charact bricks run`: time a suite of bricks into a record."""

from pathlib import Path
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.commands._models import is_of_this_machine
from charact.bricks.suite.brick import runs_as
from charact.bricks.suite.suite import Suite, load_suite
from charact.bricks.timing.worker import run_isolated
from charact.bricks.views.progress import BrickProgress
from charact.commands._shared.ceilings import recorded_ceilings
from charact.commands._shared.publish import keeping_finished, measure_resumably, publish_and_report
from charact.commands._shared.run_cases import open_record
from charact.core.console import Console
from charact.core.errors import UserError
from charact.execution.interrupt import Interrupt
from charact.execution.precision import unsupported_reason
from charact.machine.facts import resolve_device
from charact.record.manifest import check_holds
from charact.record.reader import load_run
from charact.record.redaction import expanded_path
from charact.record.writer import RunWriter

Options = dict[str, Any]
"""The command's options, as stored in the manifest."""


def start_run(path: Path, options: Options, out: Path, name: str | None, threads: int | None, quiet: bool,
              interrupt: Interrupt, *, as_json: bool = False) -> int:
    """Time a suite into a new record below `out`; return the exit status."""
    suite, device = load_suite(path), resolve_device(options["device"])
    cases = _cases(suite, options, device)
    if options["share_frac"] < 1 and any(mode == "train" for mode, _ in cases):
        raise UserError("times of bricks in training cannot be predicted: add --mode infer, or leave --share out")
    # The resolved device: a resumed run must not resolve "auto" again.
    kept = options | {"device": str(device), "cases": cases, "suite": str(path.absolute()),
                      "suite_digest": suite.digest, "compositions": str(suite.private)}
    writer = open_record(out, name or f"bricks-{suite.name}", kept, threads)
    with keeping_finished([writer]):
        writer.manifest |= recorded_ceilings(writer.manifest["machine"]["fingerprint"], [str(device)])
    return _run(writer, quiet, interrupt, as_json)


def resume_run(directory: Path, quiet: bool, interrupt: Interrupt, *, as_json: bool = False) -> int:
    """Resume a killed or interrupted run; return the exit status."""
    begun = load_run(directory, partial=True)
    if "suite_digest" not in begun.manifest.get("options", {}):
        raise UserError(f"{directory} is not a run of a suite: --resume needs an unfinished run of charact bricks run")
    writer = RunWriter.reopen(directory)
    if not is_of_this_machine(begun):
        raise UserError(f"{directory} was begun on another machine or with another PyTorch, and times must not be "
                        "mixed: resume it there, or start a new run here")
    if writer.manifest["status"] != "running":  # killed after timing, before its views were written
        writer.close("complete")
        return 0 if publish_and_report(writer, quiet, as_json=as_json) else 1
    check_holds(writer.manifest, directory, options=(
        "suite", "threads", "device", "cases", "precision_target_frac", "max_rounds", "max_seconds"))
    options = writer.manifest["options"]
    suite = load_suite(expanded_path(options["suite"]))
    if suite.digest != options["suite_digest"]:
        raise UserError(f"{options['suite']} is not the suite that {directory} began with: start a new run")
    return _run(writer, quiet, interrupt, as_json)


def _cases(suite: Suite, options: Options, device: torch.device) -> list[list[str]]:
    """Return modes and precisions to run: the requested ones, else all that the device supports."""
    asked = (options["modes"], options["precisions"], options["batch_sizes"])
    there = sorted({(entry["mode"], precision, size) for entry in suite.bricks.values()
                    for precision in entry["precisions"] for size in entry["batch_sizes"]})  # fmt: skip
    fitting = [row for row in there
               if all(wanted is None or each in wanted for each, wanted in zip(row, asked, strict=True))]
    lacks = any(set(wanted or ()) - {row[column] for row in fitting} for column, wanted in enumerate(asked))
    cases = list(dict.fromkeys((mode, runs_as(precision)) for mode, precision, _ in fitting))
    if lacks or not cases:
        known = ", ".join(f"{mode} {precision} at batch size {size}" for mode, precision, size in there)
        raise UserError(f"{suite.path} holds no bricks for these options (it has {known}): generate them with charact "
                        "bricks generate, or choose other options")
    refusals = [unsupported_reason(precision, device) for _, precision in cases]
    if all(refusals):
        raise UserError(str(refusals[0]))
    return [list(case) for case, reason in zip(cases, refusals, strict=True) if reason is None]


def _run(writer: RunWriter, quiet: bool, interrupt: Interrupt, as_json: bool) -> int:
    quiet = quiet or as_json
    console = Console(stderr=True)

    def measure() -> None:
        with BrickProgress(console, enabled=not quiet) as progress:
            run_isolated(writer, progress, interrupt)

    return measure_resumably(writer, measure, interrupt, quiet, command="bricks run", unit="round",
                             as_json=as_json)
