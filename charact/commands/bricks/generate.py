"""`charact bricks generate`: captures models, cuts them, and adds new bricks to a suite."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.capture_model import capture
from charact.bricks.capture.sources import SAVED_SUFFIX, Source, sources_of
from charact.bricks.suite.composition import (
    Composition,
    Configuration,
    CutModel,
    Facts,
    OwnFacts,
    cut_model,
    drawn_decoys,
    load_compositions,
)
from charact.bricks.suite.suite import Added, add_models, check_place
from charact.commands._shared.publish import program
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import show, warn
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.execution.out_of_memory import host_memory_guard
from charact.views.terminal.progress import MemoryProgress
from charact.views.terminal.suites import generated
from charact.workload.registry import all_workloads

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
        case, workload = source.case, source.case.workload
        facts: Facts = {"asked_as": source.asked_as, "seed": self.seed, "input_kind": workload.input_kind,
                        "source": workload.source}
        if source.asked_as.endswith(SAVED_SUFFIX):
            facts["asked_as"] = os.path.abspath(source.asked_as)
        elif ":" in source.asked_as:
            facts["own"] = cast(OwnFacts, self._own_arguments())
        return Configuration(source.id, workload.name, workload.variant, case.input_size, case.batch_size, case.mode,
                             case.precision, facts)

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
    with MemoryProgress(console, enabled=not quiet) as progress:
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


_PATIENCE_S = 60.0
"""Maximum time to wait for another process that writes the suite (seconds)."""


def generate_suite(asked: Asked, out: Path, g: int, method: str, fallback: str | None, num_decoys: int,
                   quiet: bool, interrupt: Interrupt) -> int:
    """Write or extend a suite; return the exit status, 1 if no model could be captured.

    Raises:
        UserError: the options do not fit, or the suite cannot be written.
        KeyboardInterrupt: a signal came; nothing is written.
    """
    sources = asked.sources()
    suite = check_place(out, g, method)
    found = captured_sources(asked, sources, g, method, fallback, quiet, interrupt)
    if not found:
        warn("no model could be captured: nothing is written")
        return 1
    models = [each.model for each in found]
    decoys: list[CutModel] = []
    if num_decoys:
        known = {brick.id for model in models for brick in model.bricks} | set(suite.bricks if suite else ())
        decoys = drawn_decoys(_others(asked, sources[0].case.batch_size, g, method, interrupt), known, num_decoys)
    added = add_models(out, models, g, method, torch.__version__, decoys, _PATIENCE_S)
    _report(added, found, models, out, quiet)
    return 0


def _others(asked: Asked, batch_size: int, g: int, method: str, interrupt: Interrupt) -> Iterator[CutModel]:
    """Yield other workloads, cut, in random order."""
    names = [name for name in all_workloads() if name not in asked.names]
    secrets.SystemRandom().shuffle(names)
    for name in names:
        other = replace(asked, names=[name], input_sizes=None, batch_sizes=asked.batch_sizes or [batch_size],
                        variant=None, own={})
        for found in captured_sources(other, other.sources(), g, method, None, True, interrupt):
            yield found.model


def _report(added: Added, found: Sequence[CapturedSource], models: Sequence[CutModel], out: Path,
            quiet: bool) -> None:
    """Print the added bricks and the notes of the captures."""
    if not quiet:
        for each in found:
            for note in each.notes:
                warn(f"note: {each.source.id}: {note}")
        for case in added.replaced:
            warn(f"note: {case}: replaced a different composition: the model was changed, or another file has the same "
                 "name")
        cases = {model.composition.case for model in models}
        Console().print(generated(cases, load_compositions(added.suite.private), added.suite))
    show(f"Wrote {out}: {len(added.suite.bricks):,} bricks, {added.num_new:,} of them new")
    if not quiet:
        show(f"  {added.suite.private} lists the bricks of each model: keep it private")
        show(f"  next         {program()} bricks run {out}")
