"""Timing of whole models, to verify their constructed latencies or to calibrate."""

from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.sources import Source
from charact.bricks.suite.composition import Composition
from charact.commands.bricks.models import Named, recreated_source
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
"""Share of the time that a thread runs on a core of an otherwise idle machine."""


def is_of_this_machine(run: Run) -> bool:
    """Return whether a run was recorded on an equal machine with the same PyTorch."""
    return bool(run.manifest["machine"].get("fingerprint") == machine_facts()["fingerprint"]
                and run.manifest["software"].get("torch") == torch.__version__)


def timed_source(source: Source, rule: StopRule, device: torch.device, interrupt: Interrupt) -> Timing:
    """Time a model.

    Raises:
        UserError: the model's code fails.
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
    """Time a model with the device and number of threads of a suite's run.

    Raises:
        UserError: the command line does not name the model, the model or the device no longer exists, or it fails.
        KeyboardInterrupt: a signal came.
    """
    entry = next(entry for entry in run.manifest["cases"] if entry["case"] == case)
    set_recorded_threads(run.manifest["options"]["threads"])
    timing = timed_source(recreated_source(composition, named), rule, resolve_device(entry["device"]), interrupt)
    on_core_frac = timing.facts["on_core_frac"]
    if entry["device"] == "cpu" and on_core_frac < _QUIET_FRAC:
        warn(f"warning: {composition.case} was on a core for only {on_core_frac:.0%} of its time: other programs ran, "
             "which slows whole models more than bricks; repeat it on an idle machine")
    return timing


def verified(composition: Composition, named: Named, run: Run, case: str, rule: StopRule, interrupt: Interrupt
             ) -> tuple[dict[str, Any], Rows]:
    """Time a model; return the facts of the pass `timing` and rows of the table `iterations`.

    If the model fails, the facts hold the reason, and there are no rows.
    """
    try:
        timing = timed_model(composition, named, run, case, rule, interrupt)
    except UserError as error:
        return {"status": "failed", "reason": str(error)}, []
    return {"status": "ok", "reason": None, **timing.facts}, timing.rows
