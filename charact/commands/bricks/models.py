"""Models of the `charact bricks` commands: named by the user, or by a composition."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.capture_model import capture
from charact.bricks.capture.sources import SAVED_SUFFIX, Source, sources_of
from charact.bricks.suite.composition import Composition, Configuration, Facts, OwnFacts
from charact.bricks.suite.writer import CutModel, cut_model
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.execution.out_of_memory import host_memory_guard
from charact.views.terminal.progress import MemoryProgress

DEFAULTS: dict[str, Any] = {"model_args": "", "loss": None, "optimizer": "SGD", "learning_rate": 0.01}
"""Default arguments of imported models."""


@dataclass(frozen=True)
class Asked:
    """Models requested by the user: the command's options, which compositions store to rebuild a model."""

    names: list[str]
    input_sizes: list[int] | None
    batch_sizes: list[int] | None
    modes: list[str]
    precisions: list[str]
    variant: str | None
    own: Mapping[str, Any]
    """`--input-spec` and the other options of imported models; None if not given."""
    seed: int = 0

    def sources(self) -> list[Source]:
        """Return every requested configuration.

        Raises:
            UserError: a name is unknown, or an option does not fit.
        """
        given = [option for option, value in self.own.items() if value is not None]
        if given and not any(":" in name for name in self.names):
            raise UserError(f"{given[0]} is for models of your own, named as package.module:factory: leave it out")
        return sources_of(
            self.names, input_sizes=self.input_sizes or (), batch_sizes=self.batch_sizes or (), modes=self.modes,
            precisions=self.precisions, variant=self.variant, seed=self.seed, **self._own_arguments())

    def configuration(self, source: Source) -> Configuration:
        """Return the configuration of a source for its composition, sufficient to rebuild it."""
        facts: Facts = {"asked_as": source.asked_as, "seed": self.seed,
                                 "input_kind": source.coordinates["input_kind"], "source": source.coordinates["source"]}
        if source.asked_as.endswith(SAVED_SUFFIX):
            facts["asked_as"] = os.path.abspath(source.asked_as)
        elif ":" in source.asked_as:
            facts["own"] = cast(OwnFacts, self._own_arguments())
        return Configuration(source.id, source.name, source.variant, source.input_size, source.batch_size, source.mode,
                             source.precision, facts)

    def allows(self, composition: Composition) -> bool:
        """Return whether a composition fits the options; an omitted option allows all."""
        own = composition.facts.get("own")
        return ((self.input_sizes is None or composition.input_size in self.input_sizes)
                and (self.batch_sizes is None or composition.batch_size in self.batch_sizes)
                and (self.variant is None or composition.variant == self.variant)
                and (own is None or all(value is None or own.get(_name(option)) == value
                                        for option, value in self.own.items())))

    def _own_arguments(self) -> dict[str, Any]:
        arguments = {_name(option): value for option, value in self.own.items() if value is not None}
        return DEFAULTS | {"input_spec": None} | arguments


def _name(option: str) -> str:
    return option[2:].replace("-", "_")


@dataclass(frozen=True)
class Named:
    """External code and files named on the command line; nothing else is imported, called or opened."""

    calls: frozenset[str] = frozenset()
    """Calls in the format of `call_text`, and files."""
    losses: frozenset[str] = frozenset()

    @classmethod
    def from_command_line(cls, models: Iterable[str], losses: Iterable[str], names: Iterable[str] = (),
                        model_args: str | None = None) -> "Named":
        """Collect the values of `--model` and `--loss`, and external models named as arguments.

        Args:
            models: values of `--model`.
            losses: values of `--loss`.
            names: models named as arguments.
            model_args: value of `--model-args`, their arguments.
        """
        own = (call_text(name, model_args or "") for name in names if ":" in name)
        files = (os.path.abspath(name) for name in (*models, *names) if name.endswith(SAVED_SUFFIX))
        return cls(frozenset([*models, *own, *files]), frozenset(losses))


def call_text(target: str, arguments: str) -> str:
    """Return a user's own model in the format of `--model`: `package.module:factory(depth=50)`."""
    return f"{target}({arguments})" if arguments else target


def recreated_source(composition: Composition, named: Named) -> Source:
    """Recreate the source of a composition: a workload, or a model named on the command line.

    A composition may be untrusted: its texts are only compared with those of the command line.

    Raises:
        UserError: the command line does not name the model, or it does not exist or cannot be imported here.
    """
    facts = composition.facts
    if not {"asked_as", "seed"} <= facts.keys():
        raise UserError(f"{composition.case} does not record its model: generate its suite again")
    asked_as, own = facts["asked_as"], facts.get("own", OwnFacts())
    arguments: dict[str, Any] = {"modes": [composition.mode], "precisions": [composition.precision],
                                 "seed": facts["seed"]}
    if asked_as.endswith(SAVED_SUFFIX):  # a file has its sizes
        _check_named(composition, asked_as, None, named)
    else:
        arguments |= {"input_sizes": [composition.input_size], "batch_sizes": [composition.batch_size]}
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


@dataclass(frozen=True)
class CapturedSource:
    """A captured model, cut into bricks."""

    source: Source
    model: CutModel
    notes: list[str]
    """Notes of the capture."""


def captured_sources(asked: Asked, sources: Sequence[Source], g: int, method: str, fallback: str | None,
                     quiet: bool, interrupt: Interrupt) -> list[CapturedSource]:
    """Capture and cut models in the given order; report those that cannot be captured.

    Each model is cut and released before the next, since captured models hold their weights.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    console, found = Console(stderr=True), []
    with MemoryProgress(console, enabled=console.is_terminal and not quiet) as progress:
        for number, source in enumerate(sources, start=1):
            progress.case_started(source.id, number, len(sources))
            progress.pass_started("capturing")
            try:
                with host_memory_guard(), interrupt.allowed():
                    captured = capture(source, fallback or "dispatch")
                    model = cut_model(captured, asked.configuration(source), g, method)
                found.append(CapturedSource(source, model, captured.notes))
            except UserError as error:
                _warn_error(str(error))
            except SystemExit as error:
                _warn_error(f"{source.asked_as} cannot be captured: its code ends the program "
                            f"(SystemExit: {error.code})")
            except Exception as error:  # raised by the model's code
                _warn_error(f"{source.asked_as} cannot be captured: {failure(error)['reason']}")
    return found


def _warn_error(line: str) -> None:
    warn(f"error: {' '.join(line.split())}")
