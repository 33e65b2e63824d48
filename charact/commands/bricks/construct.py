"""`charact bricks construct`: writes a record of constructed models for each run of a suite."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.rule import Rule
from rich.text import Text

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.analysis.bricks.brick_uses import brick_case
from charact.analysis.bricks.construction import construct
from charact.analysis.bricks.correction_cache import (
    Correction,
    CorrectionKey,
    NotCorrected,
    correction_file,
    read_correction,
)
from charact.analysis.bricks.machines import latency_by_machine
from charact.analysis.bricks.manifest_entry import constructed_case
from charact.analysis.bricks.times import BrickTimes
from charact.commands._shared.publish import keeping_finished, publish_and_report
from charact.commands.bricks.compositions import Models, brick_run, chosen_models, kept_compositions
from charact.commands.bricks.models import Asked, Named
from charact.commands.bricks.verify import is_of_this_machine, verified
from charact.core.console import Console
from charact.core.errors import UserError
from charact.core.output import warn
from charact.execution.interrupt import Interrupt
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter
from charact.views.terminal.bricks import machines
from charact.views.terminal.progress import MemoryProgress


def construct_models(words: Sequence[str], asked: dict[str, Any], own: tuple[Sequence[str], Sequence[str]],
                     directory: Path | None, stop: StopRule | None, out: Path, name: str | None, quiet: bool,
                     interrupt: Interrupt) -> int:
    """Construct models from each run, with one record per run; return the exit status, 1 if no model succeeded.

    Args:
        words: models and directories of runs.
        asked: options of the models.
        own: the user's own models and losses that verification may import, in addition to those among the words.
        directory: of compositions; None for the suite's own.
        stop: stop rule of verification; None to skip it.
        out: directory of the records.
        name: name of the records.
        quiet: whether to print little.
        interrupt: ends the command early.

    Raises:
        UserError: a run or a model is invalid, or a record cannot be written; finished records are kept.
        KeyboardInterrupt: a signal came before a model was constructed.
    """
    names, runs = _split_arguments(words)
    if stop is not None and not any(map(is_of_this_machine, runs)):
        raise UserError("--verify runs the models here, and no run is of this machine and its PyTorch: leave it out")
    models = chosen_models(Asked(names=names, modes=[], precisions=[], **asked), kept_compositions(runs[0], directory),
                           runs, quiet, interrupt)
    named = Named.from_command_line(*own, names, asked["own"]["--model-args"])
    cases = [{composition.case: brick_case(run, composition) for composition in models.compositions} for run in runs]
    written: list[RunWriter] = []
    with keeping_finished(written):
        for run, by_model in zip(runs, cases, strict=True):
            writer = _open(run, next(iter(by_model.values())), out, name, verifies=stop is not None)
            written.append(writer)
            rule = stop if is_of_this_machine(run) else None
            try:
                _construct(writer, run, by_model, models, named, rule, quiet, interrupt)
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
            any_ok.append(publish_and_report(writer, quiet))
    if len(written) > 1:
        Console().print(machines(latency_by_machine([load_run(writer.final) for writer in written])))
    if interrupt.signal is not None:
        return 128 + interrupt.signal
    return 0 if any(any_ok) else 1


def _split_arguments(words: Sequence[str]) -> tuple[list[str], list[Run]]:
    """Split arguments into names of models, and runs of suites (directories with a record, or unambiguous paths).

    Raises:
        UserError: models or runs are missing, or a directory holds no run of a suite.
    """
    paths = [word for word in words if os.path.exists(os.path.join(word, "run.json"))
             or ("/" in word and ":" not in word and not word.endswith(".pt2"))]
    names = [part for word in words if word not in paths for part in word.split(",") if part]
    if not paths:
        raise UserError("name a run of a suite, as in charact bricks construct all runs/<run>; charact bricks run "
                        "makes one")
    if not names:
        raise UserError(f"name models, or all, as in charact bricks construct all {paths[0]}")
    return list(dict.fromkeys(names)), [brick_run(Path(path)) for path in dict.fromkeys(paths)]


def _open(run: Run, case: str, out: Path, name: str | None, *, verifies: bool) -> RunWriter:
    """Create a new record with the facts of the run's machine.

    Args:
        run: run of a suite.
        case: a case of the run.
        out: directory of the record.
        name: name of the record.
        verifies: whether models are also run.
    """
    suite = BrickTimes(run, case).facts["suite"]
    return RunWriter(out, name or f"constructed-{suite}", {
        "command_line": ["charact", *sys.argv[1:]], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": run.manifest["machine"], "software": run.manifest["software"],
        "options": {"brick_run": run.run_id, "threads": run.manifest["options"]["threads"], "verify": verifies},
    })


def _construct(writer: RunWriter, run: Run, cases: Mapping[str, str], models: Models, named: Named,
               stop: StopRule | None, quiet: bool, interrupt: Interrupt) -> None:
    """Construct the models into a record, and close it.

    Args:
        writer: of the record.
        run: run of a suite.
        cases: case of the run by model.
        models: models to construct.
        named: code that verification may import.
        stop: stop rule of verification; None to skip it.
        quiet: whether to show no progress.
        interrupt: ends the command early.
    """
    times = {case: BrickTimes(run, case) for case in dict.fromkeys(cases.values())}
    corrections = {case: machine_correction(run, case) for case in times}
    console, failed = Console(stderr=True), list[str]()
    with MemoryProgress(console, enabled=console.is_terminal and not quiet) as progress:
        for number, composition in enumerate(models.compositions, start=1):
            progress.case_started(composition.case, number, len(models.compositions))
            case = cases[composition.case]
            construction = construct(composition, times[case], corrections[case], models.layer_types)
            entry, tables = constructed_case(construction, corrections[case])
            if stop is not None:
                progress.pass_started("running the model")
                timing, tables["iterations"] = verified(composition, named, run, case, stop, interrupt)
                entry["passes"]["timing"] = timing
                if timing["reason"] is not None:
                    failed.append(f"warning: {composition.case} is not verified: {timing['reason']}")
            writer.add_case(entry, tables)
    writer.close("complete")
    for line in failed:
        warn(line)


def correction_key(run: Run, case: str) -> CorrectionKey:
    """Return the key of the correction for a case of a suite's run."""
    entry = next(entry for entry in run.manifest["cases"] if entry["case"] == case)
    facts = entry["passes"]["bricks"]
    return CorrectionKey(
        fingerprint=run.manifest["machine"]["fingerprint"], torch_version=run.manifest["software"]["torch"],
        num_threads=run.manifest["options"]["threads"], device=entry["device"], mode=entry["mode"],
        precision=entry["precision"], g=facts["g"], cut_method=facts["cut_method"], timing_method=facts["method"])


def machine_correction(run: Run, case: str) -> Correction | str:
    """Return the cached correction for the machine of a run, or the reason why there is none."""
    try:
        return read_correction(correction_file(correction_key(run, case)))
    except NotCorrected as missing:
        return str(missing)
