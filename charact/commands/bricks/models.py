"""Models as the commands of bricks take them: named by the user, or by the composition that was made of them."""

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
"""Of models that are imported, where the user says nothing."""


@dataclass(frozen=True)
class Asked:
    """What the user said of models, as the options name it; what compositions keep to bring a model to life again."""

    names: list[str]
    input_sizes: list[int] | None
    batch_sizes: list[int] | None
    modes: list[str]
    precisions: list[str]
    variant: str | None
    own: Mapping[str, Any]
    """`--input-spec` and the other options of models that are imported; None where not given."""
    seed: int = 0

    def sources(self) -> list[Source]:
        """Every configuration.

        Raises:
            UserError: a name is unknown, or an option does not fit.
        """
        given = [option for option, value in self.own.items() if value is not None]
        if given and not any(":" in name for name in self.names):
            raise UserError(f"{given[0]} is for models of your own, named as package.module:factory: leave it out")
        return sources_of(
            self.names, input_sizes=self.input_sizes or (), batch_sizes=self.batch_sizes or (), modes=self.modes,
            precisions=self.precisions, variant=self.variant, seed=self.seed, **self._said())

    def configuration(self, source: Source) -> Configuration:
        """What a composition tells of a source: enough to bring it to life again."""
        facts: Facts = {"asked_as": source.asked_as, "seed": self.seed,
                                 "input_kind": source.coordinates["input_kind"], "source": source.coordinates["source"]}
        if source.asked_as.endswith(SAVED_SUFFIX):
            facts["asked_as"] = os.path.abspath(source.asked_as)
        elif ":" in source.asked_as:
            facts["own"] = cast(OwnFacts, self._said())
        return Configuration(source.id, source.name, source.variant, source.input_size, source.batch_size, source.mode,
                             source.precision, facts)

    def allows(self, composition: Composition) -> bool:
        """Whether a composition is of what the options say; what was left out allows all."""
        own = composition.facts.get("own")
        return ((self.input_sizes is None or composition.input_size in self.input_sizes)
                and (self.batch_sizes is None or composition.batch_size in self.batch_sizes)
                and (self.variant is None or composition.variant == self.variant)
                and (own is None or all(value is None or own.get(_name(option)) == value
                                        for option, value in self.own.items())))

    def _said(self) -> dict[str, Any]:
        said = {_name(option): value for option, value in self.own.items() if value is not None}
        return DEFAULTS | {"input_spec": None} | said


def _name(option: str) -> str:
    return option[2:].replace("-", "_")


@dataclass(frozen=True)
class Named:
    """What the command line names of models that are not built in: nothing else is imported, called or opened."""

    calls: frozenset[str] = frozenset()
    """Calls as `call_text` writes them, and files."""
    losses: frozenset[str] = frozenset()

    @classmethod
    def on_command_line(cls, models: Iterable[str], losses: Iterable[str], names: Iterable[str] = (),
                        model_args: str | None = None) -> "Named":
        """What `--model` and `--loss` name, and models that are named in the place of workloads.

        Args:
            models: of `--model`.
            losses: of `--loss`.
            names: of models.
            model_args: of `--model-args`, which those are called with.
        """
        own = (call_text(name, model_args or "") for name in names if ":" in name)
        files = (os.path.abspath(name) for name in (*models, *names) if name.endswith(SAVED_SUFFIX))
        return cls(frozenset([*models, *own, *files]), frozenset(losses))


def call_text(target: str, arguments: str) -> str:
    """A model of the user's own as `--model` names it: `package.module:factory(depth=50)`."""
    return f"{target}({arguments})" if arguments else target


def source_again(composition: Composition, named: Named) -> Source:
    """The source that a composition was made of: a workload, or what the command line names.

    A composition may come from anybody, so that its texts are only compared with those of the command line.

    Raises:
        UserError: the command line does not name it, it is not there any more, or cannot be imported here.
    """
    facts = composition.facts
    if not {"asked_as", "seed"} <= facts.keys():
        raise UserError(f"{composition.case} does not record which model it is of: generate its suite again")
    asked_as, own = facts["asked_as"], facts.get("own", OwnFacts())
    said: dict[str, Any] = {"modes": [composition.mode], "precisions": [composition.precision], "seed": facts["seed"]}
    if asked_as.endswith(SAVED_SUFFIX):  # a file has its sizes
        _check_named(composition, asked_as, None, named)
    else:
        said |= {"input_sizes": [composition.input_size], "batch_sizes": [composition.batch_size]}
        if ":" in asked_as:  # its variant is a hash of what it is made with
            _check_named(composition, call_text(asked_as, own.get("model_args", "")), own.get("loss"), named)
            said |= own
        else:
            said["variant"] = composition.variant
    (source,) = sources_of([asked_as], **said)
    return source


def _check_named(composition: Composition, call: str, loss: str | None, named: Named) -> None:
    lacking = [] if call in named.calls else ["--model", call]
    if loss is not None and ":" in loss and loss not in named.losses:
        lacking += ["--loss", loss]
    if lacking:
        raise UserError(f"{composition.case} is of a model that the command line does not name: if you trust that "
                        f"code, add {shlex.join(lacking)}")


@dataclass(frozen=True)
class CapturedSource:
    """A model that was captured: as bricks, by the most layers that a brick has."""

    source: Source
    by_g: dict[int, CutModel]
    notes: list[str]
    """What the capture says of it."""


def captured_sources(asked: Asked, sources: Sequence[Source], gs: Sequence[int], method: str, fallback: str | None,
                     quiet: bool, interrupt: Interrupt) -> list[CapturedSource]:
    """Models that can be captured, in the order they were named; of each other one a line tells what stopped it.

    Captured models hold their weights: each is cut, and let go, before the next.

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
                    by_g = {g: cut_model(captured, asked.configuration(source), g, method) for g in gs}
                found.append(CapturedSource(source, by_g, captured.notes))
            except UserError as error:
                _tell(str(error))
            except SystemExit as error:
                _tell(f"{source.asked_as} cannot be captured: its code ends the program (SystemExit: {error.code})")
            except Exception as error:  # someone else's model, which fails as it likes
                _tell(f"{source.asked_as} cannot be captured: {failure(error)['reason']}")
    return found


def _tell(line: str) -> None:
    warn(f"error: {' '.join(line.split())}")
