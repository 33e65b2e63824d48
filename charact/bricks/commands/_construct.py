"""`charact bricks construct`: writes a record of constructed models for each run of a suite."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.rule import Rule
from rich.text import Text

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.analysis.construction import BrickTimes, Correction, brick_case, construct, constructed_case
from charact.bricks.analysis.machines import latency_by_machine
from charact.bricks.analysis.tables import is_brick_run
from charact.bricks.commands._models import Asked, Named, captured_models, is_of_this_machine, timed_model
from charact.bricks.suite.brick import runs_as
from charact.bricks.suite.composition import Composition, load_compositions
from charact.bricks.views.summary import machines
from charact.commands._shared.publish import keeping_finished, publish, report_outcome
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import show, warn
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import Cached, NotCached, cache_file, read_cached
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


def is_called(composition: Composition, name: str) -> bool:
    """Return whether a name selects a composition."""
    return name in (composition.model, composition.case, composition.facts.get("asked_as"))


def chosen_models(asked: Asked, kept: Sequence[Composition], runs: Sequence[Run], quiet: bool, interrupt: Interrupt
                  ) -> tuple[list[Composition], dict[str, list[str]]]:
    """Return the models that the user names, and layer types of their bricks that the suite may lack.

    These are stored compositions, else models that are captured with the suite's cut. A name selects all stored
    compositions of that name that fit the options; `all` selects every timed model.
    """
    timed = set.intersection(*({(entry.mode, runs_as(entry.precision)) for entry in run.entries} for run in runs))
    fitting = [each for each in kept if asked.allows(each) and (each.mode, runs_as(each.precision)) in timed]
    if ALL in asked.names and asked.names != [ALL]:
        raise UserError(f"'{ALL}' cannot be combined with other models: leave it out, or the other models")
    if asked.names == [ALL]:
        if not fitting:
            raise UserError(f"there are no compositions of models that fit {runs[0].path}: name their directory with "
                            "--compositions, or name the models")
        return fitting, {}
    entries, facts = runs[0].entries, runs[0].entries[0].passes.bricks
    by_case = {each.case: each for each in kept}
    chosen: dict[str, Composition] = {}
    layer_types: dict[str, list[str]] = {}
    for name in asked.names:
        compositions = [each for each in fitting if is_called(each, name)]
        if not compositions:
            # Options of imported models do not apply to workloads named together with them.
            own = {} if ":" not in name and any(":" in each for each in asked.names) else asked.own
            model = replace(asked, names=[name], own=own, modes=list(dict.fromkeys(entry.mode for entry in entries)),
                            precisions=list(dict.fromkeys(entry.precision for entry in entries)))
            sources = model.sources()
            compositions = [by_case[source.id] for source in sources if source.id in by_case]
            assert facts.g is not None
            assert facts.cut_method is not None
            captured = captured_models(model, [source for source in sources if source.id not in by_case], facts.g,
                                       facts.cut_method, quiet, interrupt)
            compositions += [each.composition for each in captured]
            layer_types |= {brick.id: brick.layer_types for each in captured for brick in each.bricks}
        chosen |= {each.case: each for each in compositions}
    if not chosen:
        raise UserError("no model could be captured: generate the suite with those that can")
    return list(chosen.values()), layer_types


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
    models, layer_types = chosen_models(Asked(names, [], [], **asked), kept_compositions(runs[0], directory), runs,
                                        quiet, interrupt)
    named = Named.from_command_line(*own, names, asked["own"]["model_args"])
    cases = [{composition.case: brick_case(run, composition) for composition in models} for run in runs]
    written: list[RunWriter] = []
    with keeping_finished(written):
        for run, by_model in zip(runs, cases, strict=True):
            suite = run.entry(next(iter(by_model.values()))).passes.bricks.suite
            writer = RunWriter(out, name or f"constructed-{suite}", {
                "command_line": ["charact", *sys.argv[1:]], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "machine": run.manifest["machine"], "software": run.manifest["software"],
                "options": {"brick_run": run.run_id, "threads": run.options.threads, "verify": stop is not None}})
            written.append(writer)
            verify = None if stop is None or not is_of_this_machine(run) else partial(
                timed_model, named=named, run=run, rule=stop, interrupt=interrupt)
            try:
                construct_into(writer, run, by_model, models, layer_types, verify, quiet)
            except KeyboardInterrupt:
                if writer.holds_nothing:
                    written.remove(writer)
                    writer.discard()
                else:
                    writer.close("interrupted")
                break
        if not written:
            raise KeyboardInterrupt
        for writer in written:
            publish(writer, load_run(writer.directory))
    records = [load_run(writer.final) for writer in written]
    for run, record in zip(runs, records, strict=False):
        if not as_json:
            if len(runs) > 1 and not quiet:
                Console().print(Rule(Text(f"of {run.run_id}", style="bold"), align="left", style="dim"))
            report_outcome(record, quiet)
    if as_json:
        summaries = [run_summary(record) for record in records]
        show(*lines_of(summaries if len(runs) > 1 else summaries[0]))
    elif len(records) > 1:
        Console().print(drawn(machines(latency_by_machine(records))))
    if interrupt.signal is not None:
        return 128 + interrupt.signal
    return 0 if any(entry.status == "ok" for record in records for entry in record.entries) else 1


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


def construct_into(writer: RunWriter, run: Run, cases: Mapping[str, str], models: Sequence[Composition],
                   layer_types: Mapping[str, Sequence[str]], verify: Callable[..., Timing] | None, quiet: bool) -> None:
    """Construct the models from a run into a record, and close it; `cases` are those that timed their bricks."""
    times = {case: BrickTimes(run, case) for case in dict.fromkeys(cases.values())}
    corrections = {case: machine_correction(run, case) for case in times}
    console, failed = Console(stderr=True), list[str]()
    with MemoryProgress(console, enabled=not quiet) as progress:
        for number, composition in enumerate(models, start=1):
            progress.case_started(composition.case, number, len(models))
            case = cases[composition.case]
            construction = construct(composition, times[case], corrections[case], layer_types)
            entry, tables = constructed_case(construction, corrections[case])
            if verify is not None:
                progress.pass_started("running the model")
                try:
                    timing = verify(composition, case=case)
                    entry.passes["timing"] = timing.facts
                    tables["iterations"] = timing.rows
                except UserError as error:
                    entry.passes["timing"] = TimingPass("failed", str(error))
                    failed.append(f"warning: {composition.case} is not verified: {error}")
            writer.add_case(entry, tables)
    writer.close("complete")
    warn(*failed)


class CachedCorrection(Cached, kw_only=True):
    """A correction, as stored in the cache."""

    correction: Correction


def correction_file(run: Run, case: str) -> Path:
    """Return the path of the correction for a case of a suite's run; its name has everything that it depends on.

    The suite is not included: a correction describes the machine and the way bricks are cut and timed, and also
    applies to other models and suites.

    Raises:
        NotCached: the user has no home directory.
    """
    entry = run.entry(case)
    facts = entry.passes.bricks
    return cache_file("corrections", "-".join(map(str, (
        run.manifest["machine"]["fingerprint"], run.manifest["software"]["torch"], run.options.threads, entry.device,
        entry.mode, entry.precision, facts.g, facts.cut_method, facts.method))))


def machine_correction(run: Run, case: str) -> Correction | str:
    """Return the cached correction for the machine of a run, or the reason why there is none."""
    try:
        return read_cached(correction_file(run, case), CachedCorrection,
                           "no correction was learned on this machine: run charact bricks calibrate",
                           "it was learned by charact {}: run charact bricks calibrate again").correction
    except NotCached as missing:
        return str(missing)
