"""Whole models that the user names: recreated from their compositions, and timed."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.recording import Source
from charact.bricks.commands._generate import sources_of
from charact.bricks.suite.composition import Composition, OwnFacts
from charact.bricks.timing.suite_run import set_recorded_threads
from charact.bricks.timing.whole_model import time_end_to_end
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.machine.facts import resolve_device
from charact.measure.passes.timing import StopRule, Timing
from charact.record.reader import Run


@dataclass(frozen=True)
class Named:
    """External code named on the command line; nothing else is imported or called."""

    calls: frozenset[str] = frozenset()
    """Calls in the format of `call_text`."""
    losses: frozenset[str] = frozenset()

    @classmethod
    def from_command_line(cls, models: Iterable[str], losses: Iterable[str], names: Iterable[str] = (),
                        model_args: str | None = None) -> "Named":
        """Collect the values of `--model` and `--loss`, and external models named as arguments."""
        own = (call_text(name, model_args or "") for name in names if ":" in name)
        return cls(frozenset([*models, *own]), frozenset(losses))


def call_text(target: str, arguments: str) -> str:
    """Return a user's own model in the format of `--model`: `package.module:factory(depth=50)`."""
    return f"{target}({arguments})" if arguments else target


def recreated_source(composition: Composition, named: Named) -> Source:
    """Recreate the source of a composition: a workload, or a model named on the command line.

    A composition may be untrusted: its texts are only compared with those of the command line.
    """
    facts = composition.facts
    if not {"asked_as", "seed"} <= facts.keys():
        raise UserError(f"{composition.case} does not record its model: generate its suite again")
    asked_as, own = facts["asked_as"], facts.get("own", OwnFacts())
    arguments: dict[str, Any] = {
        "modes": [composition.mode], "precisions": [composition.precision], "seed": facts["seed"],
        "input_sizes": [composition.input_size], "batch_sizes": [composition.batch_size]}
    if ":" in asked_as:  # its variant is a hash of its arguments
        _check_named(composition, call_text(asked_as, own.get("model_args", "")), own.get("loss"), named)
        arguments |= own
    else:
        arguments["variant"] = composition.variant
    (source,) = sources_of([asked_as], **arguments)
    return source


def _check_named(composition: Composition, call: str, loss: str | None, named: Named) -> None:
    lacking = [] if call in named.calls else ["--model", call]
    if loss is not None and ":" in loss and loss not in named.losses:
        lacking += ["--loss", loss]
    if lacking:
        raise UserError(f"the model of {composition.case} is not named on the command line: if you trust its code, add "
                        f"{shlex.join(lacking)}")


_QUIET_FRAC = 0.9
"""Minimum share of its time that a model's thread runs on a core if no other program disturbs it."""


def timed_model(composition: Composition, named: Named, run: Run, case: str, rule: StopRule, interrupt: Interrupt
                ) -> Timing:
    """Time a model with the device and number of threads of a suite's run.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    device = resolve_device(run.entry(case).device)
    set_recorded_threads(run.options.threads)
    source = recreated_source(composition, named)
    try:
        with interrupt.allowed():
            timing = time_end_to_end(source, rule, device)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{source.id} cannot be run: {failure(error, composition.precision)['reason']}") from error
    except SystemExit as error:
        raise UserError(f"{source.id} cannot be run: its code ends the program (SystemExit: {error.code})") from error
    on_core_frac = timing.facts.on_core_frac or 0.0
    if device.type == "cpu" and on_core_frac < _QUIET_FRAC:
        warn(f"warning: {composition.case} was on a core for only {on_core_frac:.0%} of its time: other programs ran, "
             "which slows whole models more than bricks; repeat it on an idle machine")
    return timing
