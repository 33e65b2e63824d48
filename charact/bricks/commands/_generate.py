"""`charact bricks generate` and `charact bricks run`: write a suite of bricks, and time it into a record."""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.capture import capture
from charact.bricks.capture.recording import Source
from charact.bricks.suite.brick import runs_as
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
from charact.bricks.suite.suite import Added, Suite, add_models, check_place, load_suite
from charact.bricks.timing.worker import run_isolated
from charact.bricks.views.progress import BrickProgress
from charact.bricks.views.summary import generated
from charact.commands._shared.ceilings import recorded_ceilings
from charact.commands._shared.publish import keeping_finished, measure_resumably, program, publish_and_report
from charact.commands._shared.run_cases import open_record
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import show, warn
from charact.datasets._common.request import DataRequest
from charact.execution.case import cases_of
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.precision import unsupported_reason
from charact.machine.facts import machine_facts, resolve_device
from charact.record.manifest import check_holds
from charact.record.reader import Run, load_run
from charact.record.redaction import expanded_path
from charact.record.writer import RunWriter
from charact.views.terminal.progress import MemoryProgress
from charact.views.terminal.renderer import drawn
from charact.workload.base import Workload
from charact.workload.registry import all_workloads, find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model


def sources_of(names: Sequence[str], *, input_sizes: Sequence[int] = (), batch_sizes: Sequence[int] = (),
               modes: Sequence[str] = ("infer",), precisions: Sequence[str] = ("fp32",), variant: str | None = None,
               input_spec: str | None = None, model_args: str = "", loss: str | None = None, optimizer: str = "SGD",
               learning_rate: float = 0.01, seed: int = 0, device: str = "cpu") -> list[Source]:
    """Return the configurations of models: the product of sizes, batch sizes, modes and precisions.

    Models are workloads, or `package.module:factory`. Sizes are by default those of the workload, or of the spec.

    Imported models get a variant that is a hash of their location and arguments, to distinguish models of the same
    name.
    """
    found: list[Source] = []
    for name in names:
        if ":" in name:
            if input_spec is None:
                raise UserError(f"{name} needs --input-spec, the shape of its inputs, such as --input-spec 3xSxS")
            workload: Workload = _with_unique_variant(
                own_model(name, model_args, parse_input_spec(input_spec), loss, optimizer, learning_rate
                          ).prepare(variant), name, model_args, input_spec, loss, optimizer, learning_rate)
        else:
            workload = find_workload(name).prepare(variant)
        for case in cases_of(workload, input_sizes, batch_sizes, modes, precisions, device=torch.device(device),
                             data=DataRequest(seed=seed)):
            case.check_size()
            found.append(Source(case, name))
    return found


def _with_unique_variant(workload: Workload, *what: Any) -> Workload:
    """Return an external workload with a hash of `what` as its variant."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:6]
    return replace(workload, variants=(workload.variants[0], digest), variant=digest)


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
        """Return every requested configuration."""
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
        if ":" in source.asked_as:
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


def captured_sources(asked: Asked, sources: Sequence[Source], g: int, method: str, quiet: bool,
                     interrupt: Interrupt) -> list[CapturedSource]:
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
                    captured = capture(source)
                    model = cut_model(captured, asked.configuration(source), g, method)
                found.append(CapturedSource(source, model, captured.notes))
            except UserError as error:
                _warn_error(str(error))
            except SystemExit as error:
                _warn_error(f"{source.asked_as} cannot be captured: its code ends the program "
                            f"(SystemExit: {error.code})")
            except Exception as error:  # raised by the model's code
                _warn_error(f"{source.asked_as} cannot be captured: {failure(error, source.case.precision)['reason']}")
    return found


def _warn_error(line: str) -> None:
    warn(f"error: {' '.join(line.split())}")


_PATIENCE_S = 60.0
"""Maximum time to wait for another process that writes the suite (seconds)."""


def generate_suite(asked: Asked, out: Path, g: int, method: str, num_decoys: int, quiet: bool,
                   interrupt: Interrupt) -> int:
    """Write or extend a suite; return the exit status, 1 if no model could be captured.

    Raises:
        KeyboardInterrupt: a signal came; nothing is written.
    """
    sources = asked.sources()
    suite = check_place(out, g, method)
    found = captured_sources(asked, sources, g, method, quiet, interrupt)
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
        for found in captured_sources(other, other.sources(), g, method, True, interrupt):
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
        Console().print(drawn(generated(cases, load_compositions(added.suite.private), added.suite)))
    show(f"Wrote {out}: {len(added.suite.bricks):,} bricks, {added.num_new:,} of them new")
    if not quiet:
        show(f"  {added.suite.private} lists the bricks of each model: keep it private")
        show(f"  next         {program()} bricks run {out}")


Options = dict[str, Any]
"""The command's options, as stored in the manifest."""


def start_run(path: Path, options: Options, out: Path, name: str | None, threads: int | None, quiet: bool,
          interrupt: Interrupt, *,
          as_json: bool = False) -> int:
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


def is_of_this_machine(run: Run) -> bool:
    """Return whether a run was recorded on an equal machine with the same PyTorch."""
    return bool(run.manifest["machine"].get("fingerprint") == machine_facts()["fingerprint"]
                and run.manifest["software"].get("torch") == torch.__version__)
