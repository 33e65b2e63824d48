"""`charact bricks construct`: writes a record of constructed models for each run of a suite."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.rule import Rule
from rich.text import Text

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.analysis.construction import BrickTimes, Correction, brick_case, construct, constructed_case
from charact.bricks.analysis.machines import latency_by_machine
from charact.bricks.analysis.tables import is_brick_run
from charact.bricks.commands._generate import Asked, captured_sources, is_of_this_machine
from charact.bricks.commands._whole_models import Named, timed_model
from charact.bricks.suite.brick import Brick, runs_as
from charact.bricks.suite.composition import Composition, load_compositions
from charact.bricks.views.summary import machines
from charact.commands._shared.publish import keeping_finished, publish, publish_and_report
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.files import user_cache, write_text, writing
from charact.core.output import show, warn
from charact.execution.interrupt import Interrupt
from charact.measure.passes.timing import StopRule, Timing
from charact.record.manifest import check_holds
from charact.record.manifest_passes import TimingPass
from charact.record.reader import Run, load_run
from charact.record.redaction import expanded_path
from charact.record.writer import RunWriter
from charact.views.export.run_summary import lines_of, run_summary
from charact.views.terminal.progress import MemoryProgress
from charact.views.terminal.renderer import drawn

ALL = "all"


@dataclass(frozen=True)
class Models:
    """Compositions in the requested order, and the bricks of newly captured models by identifier."""

    compositions: list[Composition]
    bricks: dict[str, Brick] = field(default_factory=dict)

    @property
    def layer_types(self) -> dict[str, list[str]]:
        """Return layer types of bricks that the suite may lack."""
        return {brick.id: brick.layer_types for brick in self.bricks.values()}


def brick_run(path: Path) -> Run:
    """Load the run of a suite from a directory."""
    run = load_run(path)
    if not is_brick_run(run):
        raise UserError(f"{path} is not a run of a suite: charact bricks run makes one")
    check_holds(run.manifest, path, machine=("fingerprint",), software=("torch",), options=("threads",))
    return run


def kept_compositions(run: Run, directory: Path | None) -> list[Composition]:
    """Read the compositions of the suite that a run timed; return an empty list if they are not available."""
    if directory is not None:
        return load_compositions(directory)
    recorded = run.options.compositions
    place = expanded_path(recorded) if recorded else None
    return load_compositions(place) if place is not None and place.is_dir() else []


def chosen_models(asked: Asked, kept: Sequence[Composition], runs: Sequence[Run], quiet: bool, interrupt: Interrupt
                  ) -> Models:
    """Return the models that the user names: stored compositions, else newly captured models with the suite's cut.

    A name selects all stored compositions of that name that fit the options; `all` selects every timed model.
    """
    timed = set.intersection(*({(entry.mode, runs_as(entry.precision)) for entry in run.entries} for run in runs))
    allowed = [each for each in kept if asked.allows(each)]
    fitting = [each for each in allowed if (each.mode, runs_as(each.precision)) in timed]
    if ALL in asked.names and asked.names != [ALL]:
        raise UserError(f"'{ALL}' cannot be combined with other models: leave it out, or the other models")
    if asked.names == [ALL]:
        if not fitting:
            raise UserError(f"there are no compositions of models that fit {runs[0].path}: name their directory with "
                            "--compositions, or name the models")
        return Models(fitting)
    found: list[Composition] = []
    bricks: dict[str, Brick] = {}
    for name in asked.names:
        known = [each for each in fitting if is_called(each, name)]
        if not known:
            # Options of imported models do not apply to workloads named together with them.
            own = {} if ":" not in name and any(":" in each for each in asked.names) else asked.own
            captured = _captured(replace(asked, names=[name], own=own), kept, runs[0], quiet, interrupt)
            known, bricks = captured.compositions, bricks | captured.bricks
        found += known
    if not found:
        raise UserError("no model could be captured: generate the suite with those that can")
    return Models(list({each.case: each for each in found}.values()), bricks)


def is_called(composition: Composition, name: str) -> bool:
    """Return whether a name selects a composition."""
    return name in (composition.model, composition.case, composition.facts.get("asked_as"))


def _captured(asked: Asked, kept: Sequence[Composition], run: Run, quiet: bool, interrupt: Interrupt) -> Models:
    """Capture a model with the suite's cut, or use its stored composition under another name."""
    facts = run.entries[0].passes.bricks
    assert facts.g is not None
    assert facts.cut_method is not None
    modes, precisions = (list(dict.fromkeys(getattr(entry, name) for entry in run.entries))
                         for name in ("mode", "precision"))
    by_case = {each.case: each for each in kept}
    asked = replace(asked, modes=modes, precisions=precisions)
    sources = asked.sources()
    known = [by_case[source.id] for source in sources if source.id in by_case]
    models = [each.model for each in captured_sources(
        asked, [source for source in sources if source.id not in by_case],
        facts.g, facts.cut_method, quiet, interrupt)]
    return Models([*known, *(model.composition for model in models)],
                  {brick.id: brick for model in models for brick in model.bricks})


def construct_models(words: Sequence[str], asked: dict[str, Any], own: tuple[Sequence[str], Sequence[str]],
                     directory: Path | None, stop: StopRule | None, out: Path, name: str | None, quiet: bool,
                     interrupt: Interrupt, *, as_json: bool = False) -> int:
    """Construct models from each run into a record per run, and return the exit status.

    The status is 1 if no model succeeded, or that of a signal that ended the command early.

    Raises:
        KeyboardInterrupt: a signal came before a model was constructed.
    """
    quiet = quiet or as_json
    names, runs = _split_arguments(words)
    if stop is not None and not any(map(is_of_this_machine, runs)):
        raise UserError("--verify runs the models here, and no run is of this machine and its PyTorch: leave it out")
    models = chosen_models(Asked(names=names, modes=[], precisions=[], **asked), kept_compositions(runs[0], directory),
                           runs, quiet, interrupt)
    verify = None if stop is None else partial(
        timed_model, named=Named.from_command_line(*own, names, asked["own"]["--model-args"]), rule=stop,
        interrupt=interrupt)
    cases = [{composition.case: brick_case(run, composition) for composition in models.compositions} for run in runs]
    written: list[RunWriter] = []
    with keeping_finished(written):
        for run, by_model in zip(runs, cases, strict=True):
            writer = _open(run, next(iter(by_model.values())), out, name, verifies=stop is not None)
            written.append(writer)
            try:
                _construct(writer, run, by_model, models, verify if is_of_this_machine(run) else None, quiet)
            except KeyboardInterrupt:
                if writer.holds_nothing:
                    written.remove(writer)
                    writer.discard()
                else:
                    writer.close("interrupted")
                break
        if not written:
            raise KeyboardInterrupt
        any_ok = []
        for run, writer in zip(runs, written, strict=False):
            if len(runs) > 1 and not quiet:
                Console().print(Rule(Text(f"of {run.run_id}", style="bold"), align="left", style="dim"))
            any_ok.append(_publish(writer, quiet, as_json=as_json))
    if as_json:
        summaries = [run_summary(load_run(writer.final)) for writer in written]
        show(*lines_of(summaries if len(runs) > 1 else summaries[0]))
    elif len(written) > 1:
        Console().print(drawn(machines(latency_by_machine([load_run(writer.final) for writer in written]))))
    if interrupt.signal is not None:
        return 128 + interrupt.signal
    return 0 if any(any_ok) else 1


def _publish(writer: RunWriter, quiet: bool, *, as_json: bool) -> bool:
    """Publish a record, and report its outcome unless it is printed as JSON; return whether any case succeeded."""
    if not as_json:
        return publish_and_report(writer, quiet)
    run = load_run(writer.directory)
    publish(writer, run)
    return any(entry.status == "ok" for entry in run.entries)


def _split_arguments(words: Sequence[str]) -> tuple[list[str], list[Run]]:
    """Split arguments into names of models, and runs of suites (directories with a record, or unambiguous paths)."""
    paths = [word for word in words if os.path.exists(os.path.join(word, "run.json"))
             or ("/" in word and ":" not in word)]
    names = [part for word in words if word not in paths for part in word.split(",") if part]
    if not paths:
        raise UserError("name a run of a suite, as in charact bricks construct all runs/<run>; charact bricks run "
                        "makes one")
    if not names:
        raise UserError(f"name models, or all, as in charact bricks construct all {paths[0]}")
    return list(dict.fromkeys(names)), [brick_run(Path(path)) for path in dict.fromkeys(paths)]


def _open(run: Run, case: str, out: Path, name: str | None, *, verifies: bool) -> RunWriter:
    """Create a new record with the facts of the run's machine."""
    suite = run.entry(case).passes.bricks.suite
    return RunWriter(out, name or f"constructed-{suite}", {
        "command_line": ["charact", *sys.argv[1:]], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": run.manifest["machine"], "software": run.manifest["software"],
        "options": {"brick_run": run.run_id, "threads": run.options.threads, "verify": verifies},
    })


def _construct(writer: RunWriter, run: Run, cases: Mapping[str, str], models: Models,
               verify: Callable[..., Timing] | None, quiet: bool) -> None:
    """Construct the models into a record, and close it."""
    times = {case: BrickTimes(run, case) for case in dict.fromkeys(cases.values())}
    corrections = {case: machine_correction(run, case) for case in times}
    console, failed = Console(stderr=True), list[str]()
    with MemoryProgress(console, enabled=not quiet) as progress:
        for number, composition in enumerate(models.compositions, start=1):
            progress.case_started(composition.case, number, len(models.compositions))
            case = cases[composition.case]
            construction = construct(composition, times[case], corrections[case], models.layer_types)
            entry, tables = constructed_case(construction, corrections[case])
            if verify is not None:
                progress.pass_started("running the model")
                try:
                    timing = verify(composition, run=run, case=case)
                    entry.passes["timing"] = timing.facts
                    tables["iterations"] = timing.rows
                except UserError as error:
                    entry.passes["timing"] = TimingPass("failed", str(error))
                    failed.append(f"warning: {composition.case} is not verified: {error}")
            writer.add_case(entry, tables)
    writer.close("complete")
    for line in failed:
        warn(line)


def machine_correction(run: Run, case: str) -> Correction | str:
    """Return the cached correction for the machine of a run, or the reason why there is none."""
    try:
        return read_correction(correction_file(correction_key(run, case)))
    except NotCorrected as missing:
        return str(missing)


class NotCorrected(Exception):
    """There is no usable correction in the cache; the message gives the reason."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """Cache entry of a correction."""

    format: Literal[1]
    charact: str
    """Version of charact that fitted it; others may time bricks differently."""
    learned: str
    """Time of the fit."""
    correction: Correction


def correction_key(run: Run, case: str) -> tuple[object, ...]:
    """Return what identifies a correction for a case of a suite's run: machine, software, options and cut.

    The suite is not included: a correction describes the machine and the way bricks are cut and timed, and also
    applies to other models and suites.
    """
    entry = run.entry(case)
    facts = entry.passes.bricks
    return (run.manifest["machine"]["fingerprint"], run.manifest["software"]["torch"], run.options.threads,
            entry.device, entry.mode, entry.precision, facts.g, facts.cut_method, facts.method)


def correction_file(key: Sequence[object]) -> Path:
    """Return the path of a correction's file, whose name contains the whole key.

    Raises:
        NotCorrected: the user has no home directory.
    """
    try:
        cache = user_cache()
    except RuntimeError:
        raise NotCorrected("there is no home directory for the cache: set XDG_CACHE_HOME") from None
    name = "-".join(re.sub(r"[^\w.+]", "_", str(part)) for part in key)
    return cache / "corrections" / f"{name}.json"


def read_correction(path: Path) -> Correction:
    """Read a correction from the cache.

    Raises:
        NotCorrected: there is none, or it cannot be used.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        raise NotCorrected("no correction was learned on this machine: run charact bricks calibrate") from None
    except OSError as error:
        raise NotCorrected(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotCorrected(f"{path} is damaged, or was written by another version of charact") from None
    if kept.charact != version("charact"):
        raise NotCorrected(f"it was learned by charact {kept.charact}: run charact bricks calibrate again")
    return kept.correction


def keep_correction(path: Path, correction: Correction) -> None:
    """Write a correction to the cache atomically."""
    kept = Kept(1, version("charact"), time.strftime("%Y-%m-%dT%H:%M:%S%z"), correction)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.format(msgspec.json.encode(kept), indent=1).decode())
