"""Models as the user names them: their configurations, captured, recreated from compositions, and timed as a whole."""

import hashlib
import itertools
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.capture.capture import capture
from charact.bricks.capture.recording import Source
from charact.bricks.suite.composition import Composition, Configuration, CutModel, Facts, OwnFacts, cut_model
from charact.bricks.timing.suite_run import brick_settings, set_recorded_threads
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import warn
from charact.datasets._common.request import DataRequest
from charact.execution.case import cases_of
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.execution.loop import Loop
from charact.execution.out_of_memory import host_memory_guard
from charact.machine.facts import machine_facts, resolve_device
from charact.measure.passes.timing import StopRule, Timing, timing_pass
from charact.record.reader import Rows, Run
from charact.views.terminal.progress import MemoryProgress
from charact.workload.base import Workload
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model


def sources_of(names: Sequence[str], *, input_sizes: Sequence[int] = (), batch_sizes: Sequence[int] = (),
               modes: Sequence[str] = ("infer",), precisions: Sequence[str] = ("fp32",), variant: str | None = None,
               input_spec: str | None = None, model_args: str = "", loss: str | None = None, optimizer: str = "SGD",
               learning_rate: float = 0.01, seed: int = 0) -> list[Source]:
    """Return the configurations of models: the product of sizes, batch sizes, modes and precisions.

    Models are workloads, or `package.module:factory`. Sizes are by default those of the workload, or of the spec.

    Imported models get a variant that is a hash of their location and arguments, to distinguish models of the same
    name.
    """
    sources: list[Source] = []
    for name in names:
        if ":" in name:
            if input_spec is None:
                raise UserError(f"{name} needs --input-spec, the shape of its inputs, such as --input-spec 3xSxS")
            own = own_model(name, model_args, parse_input_spec(input_spec), loss, optimizer, learning_rate)
            workload: Workload = own.prepare(variant)
            where = json.dumps([name, model_args, input_spec, loss, optimizer, learning_rate])
            digest = hashlib.sha256(where.encode()).hexdigest()[:6]
            workload = replace(workload, variants=(workload.variants[0], digest), variant=digest)
        else:
            workload = find_workload(name).prepare(variant)
        for case in cases_of(workload, input_sizes, batch_sizes, modes, precisions, device=torch.device("cpu"),
                             data=DataRequest(seed=seed)):
            case.check_size()
            sources.append(Source(case, name))
    return sources


_OWN_DEFAULTS = OwnFacts(model_args="", input_spec=None, loss=None, optimizer="SGD", learning_rate=0.01)


@dataclass(frozen=True)
class Asked:
    """Models requested by the user: the command's options, which compositions store to rebuild a model."""

    names: list[str]
    modes: list[str]
    precisions: list[str]
    input_sizes: list[int] | None
    batch_sizes: list[int] | None
    variant: str | None
    own: Mapping[str, Any]
    """Options of imported models, as in `OwnFacts`; None if not given."""
    seed: int = 0

    def sources(self) -> list[Source]:
        """Return every requested configuration."""
        given = [name for name, value in self.own.items() if value is not None]
        if given and not any(":" in name for name in self.names):
            raise UserError(f"--{given[0].replace('_', '-')} is for models of your own, named as "
                            "package.module:factory: leave it out")
        return sources_of(self.names, input_sizes=self.input_sizes or (), batch_sizes=self.batch_sizes or (),
                          modes=self.modes, precisions=self.precisions, variant=self.variant, seed=self.seed,
                          **self._own_facts())

    def configuration(self, source: Source) -> Configuration:
        """Return the configuration of a source for its composition, sufficient to rebuild it."""
        case, workload = source.case, source.case.workload
        facts: Facts = {"asked_as": source.asked_as, "seed": self.seed, "input_kind": workload.input_kind,
                        "source": workload.source}
        if ":" in source.asked_as:
            facts["own"] = self._own_facts()
        return Configuration(source.id, workload.name, workload.variant, case.input_size, case.batch_size, case.mode,
                             case.precision, facts)

    def allows(self, composition: Composition) -> bool:
        """Return whether a composition fits the options; an omitted option allows all."""
        own = composition.facts.get("own")
        return ((self.input_sizes is None or composition.input_size in self.input_sizes)
                and (self.batch_sizes is None or composition.batch_size in self.batch_sizes)
                and (self.variant is None or composition.variant == self.variant)
                and (own is None or all(value is None or own.get(name) == value for name, value in self.own.items())))

    def _own_facts(self) -> OwnFacts:
        return cast(OwnFacts, {**_OWN_DEFAULTS, **{name: each for name, each in self.own.items() if each is not None}})


def captured_models(asked: Asked, sources: Sequence[Source], g: int, method: str, quiet: bool, interrupt: Interrupt
                    ) -> list[CutModel]:
    """Capture and cut models in the given order; report those that cannot be captured, and notes unless `quiet`.

    Each model is cut and released before the next, since captured models hold their weights.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    console, models, lines = Console(stderr=True), list[CutModel](), list[str]()
    with MemoryProgress(console, enabled=not quiet) as progress:
        for number, source in enumerate(sources, start=1):
            progress.case_started(source.id, number, len(sources))
            progress.pass_started("capturing")
            problem = ""
            try:
                with host_memory_guard(), interrupt.allowed():
                    captured = capture(source)
                    models.append(cut_model(captured, asked.configuration(source), g, method))
                lines += [f"note: {source.id}: {note}" for note in captured.notes]
            except UserError as error:
                problem = str(error)
            except SystemExit as error:
                problem = f"{source.asked_as} cannot be captured: its code ends the program (SystemExit: {error.code})"
            except Exception as error:  # raised by the model's code
                problem = f"{source.asked_as} cannot be captured: {failure(error, source.case.precision)['reason']}"
            if problem:
                warn(f"error: {' '.join(problem.split())}")
    if not quiet:
        warn(*lines)
    return models


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
        call, loss = call_text(asked_as, own.get("model_args", "")), own.get("loss")
        lacking = [] if call in named.calls else ["--model", call]
        if loss is not None and ":" in loss and loss not in named.losses:
            lacking += ["--loss", loss]
        if lacking:
            raise UserError(f"the model of {composition.case} is not named on the command line: if you trust its code, "
                            f"add {shlex.join(lacking)}")
        arguments |= own
    else:
        arguments["variant"] = composition.variant
    (source,) = sources_of([asked_as], **arguments)
    return source


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


def time_end_to_end(source: Source, rule: StopRule, device: torch.device | None = None) -> Timing:
    """Time iterations of a model with the settings of bricks: forward, and in training loss, backward and update.

    Bricks do not include data loading, so all iterations use one batch prepared in advance, and fetching it counts as
    `other`. The fact `on_core_frac` is the share of the time in which the calling thread was on a core; on a CPU it is
    near 1 unless other programs interfere.
    """
    case = source.case if device is None else replace(source.case, device=device)
    with host_memory_guard(case.device), brick_settings(case.precision):
        loop = Loop(case)
        try:
            batch = loop.next_batch()
        finally:
            loop.close()  # workers of a loader would compete with the model
        loop.feed(itertools.repeat(batch))
        begun, ran = time.perf_counter(), time.thread_time()
        timing = timing_pass(loop, rule, lambda num_iterations, median_s: None)
        timing.facts.on_core_frac = (time.thread_time() - ran) / (time.perf_counter() - begun)
    fetched = {row["iteration"]: row for row in timing.rows if row["phase"] == "data"}
    rows: Rows = []
    for row in timing.rows:
        if row["phase"] == "other":
            row = row | {column: None if row[column] is None else row[column] + fetched[row["iteration"]][column]
                         for column in ("host_s", "device_s")}
        if row["phase"] != "data":
            rows.append(row)
    return replace(timing, rows=rows)


def is_of_this_machine(run: Run) -> bool:
    """Return whether a run was recorded on an equal machine with the same PyTorch."""
    return bool(run.manifest["machine"].get("fingerprint") == machine_facts()["fingerprint"]
                and run.manifest["software"].get("torch") == torch.__version__)
