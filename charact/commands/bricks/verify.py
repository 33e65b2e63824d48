"""Running models themselves beside what was constructed of them: to verify it, or to learn from it."""

from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.sources import Source
from charact.bricks.suite.composition import Composition
from charact.commands.bricks.models import Named, source_again
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.machine.facts import machine_facts, resolve_device
from charact.measure.bricks.allocator_settings import set_recorded_threads
from charact.measure.bricks.whole_model import time_end_to_end
from charact.measure.passes.timing import StopRule, Timing
from charact.record.reader import Rows, Run

_QUIET_FRAC = 0.9
"""Share of the time that a thread has a core on a machine that does nothing else."""


def is_of_this_machine(run: Run) -> bool:
    """Whether a run is of a machine like this one, with the same PyTorch."""
    return bool(run.manifest["machine"].get("fingerprint") == machine_facts()["fingerprint"]
                and run.manifest["software"].get("torch") == torch.__version__)


def timed_source(source: Source, rule: StopRule, device: torch.device, interrupt: Interrupt) -> Timing:
    """Time a model, which may be someone else's and fails as it likes.

    Raises:
        UserError: it does.
        KeyboardInterrupt: a signal came.
    """
    try:
        with interrupt.allowed():
            return time_end_to_end(source, rule, device)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{source.id} cannot be run: {failure(error)['reason']}") from error
    except SystemExit as error:
        raise UserError(f"{source.id} cannot be run: its code ends the program (SystemExit: {error.code})") from error


def timed_model(composition: Composition, named: Named, run: Run, case: str, rule: StopRule, interrupt: Interrupt
                ) -> Timing:
    """Time a model as a suite's run timed bricks: on its device, with as many threads.

    Raises:
        UserError: the command line does not name the model, it is not there any more, or the device; or it fails.
        KeyboardInterrupt: a signal came.
    """
    entry = next(entry for entry in run.manifest["cases"] if entry["case"] == case)
    set_recorded_threads(run.manifest["options"]["threads"])
    timing = timed_source(source_again(composition, named), rule, resolve_device(entry["device"]), interrupt)
    had = timing.facts["on_core_frac"]
    if entry["device"] == "cpu" and had < _QUIET_FRAC:
        warn(f"warning: {composition.case} had a core for {had:.0%} of its time only: other programs ran, which "
             "lengthens whole models more than bricks; repeat it when they do not")
    return timing


def verified(composition: Composition, named: Named, run: Run, case: str, rule: StopRule, interrupt: Interrupt
             ) -> tuple[dict[str, Any], Rows]:
    """What the pass `timing` tells of a model that was run itself, and rows of the table `iterations`.

    A model that fails leaves its reason and no rows: what was constructed of it stays.
    """
    try:
        timing = timed_model(composition, named, run, case, rule, interrupt)
    except UserError as error:
        return {"status": "failed", "reason": str(error)}, []
    return {"status": "ok", "reason": None, **timing.facts}, timing.rows
