"""Runs the cases of studies on real data where there are some, and writes the report with a chapter for each."""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from charact.commands.sweep.known import known_options
from charact.commands.sweep.run import run_sweep
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.core.output import show, warn
from charact.datasets._common.registry import find_dataset
from charact.datasets._common.spec import Split, StoredDatasetSpec
from charact.record.presentable import presentable
from charact.record.reader import Run, load_run
from charact.studies.claims import RULE
from charact.studies.study import Scale, Study, find_studies
from charact.sweeps.definition import Definition, SweepCase, read_definition
from charact.sweeps.directory import CaseStatus, SweepDirectory, statuses
from charact.views.document import Block, Body
from charact.views.html.report import chapters_report
from charact.views.tables.model import with_footnotes, without_constants


def repeat_studies(name: str, scale: Scale, out: Path, data_dir: Path | None, slurm: Mapping[str, str] | None, *,
                   machines: Sequence[Path], dry_run: bool, retry: bool, quiet: bool) -> int:
    """Run what is missing of studies, and write `report.html`; return the exit status: 1 if a case did not succeed.

    Args:
        name: name of a study, or `all`.
        scale: quick or full.
        out: directory with a directory for each study.
        data_dir: directory of real data sets; None for synthetic data.
        slurm: options of sbatch; None runs the cases here.
        machines: directories of other machines' studies, for studies that compare machines.
        dry_run: only list the cases.
        retry: also run failed cases again.
        quiet: print no progress.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(f"--data-dir {data_dir} is no directory: name one that holds data sets, or leave it out")
    studies = find_studies(name)
    others = {study.name: _other_runs(study, scale, machines) for study in studies if study.compares_machines}
    if machines and not others:
        comparing = [study.name for study in find_studies("all") if study.compares_machines]
        raise UserError(f"--machine is for {', '.join(comparing)}: leave it out")
    status, chapters, all_found = 0, [], []
    for study in studies:
        directory = SweepDirectory(out / f"{study.name}-{scale}")
        definition = _definition(study, scale, directory, data_dir)
        if not dry_run:
            _prepare(study, scale, directory)
        status = max(status, run_sweep(definition, directory.path, slurm, dry_run=dry_run, retry=retry, quiet=quiet))
        if status > 1:
            return status
        if not dry_run:
            found = statuses(directory, definition.cases)
            names = [row.outcome.run for row in found if row.outcome is not None and row.outcome.run]
            runs = [presentable(load_run(directory.runs / name)) for name in names if (directory.runs / name).is_dir()]
            runs += [*_after(study, scale, directory, found), *others.get(study.name, [])]
            chapters.append((study.name, study.title, _chapter(study, scale, runs, found)))
            all_found += found
    if not dry_run:
        page = chapters_report("Published studies, repeated" if name == "all" else chapters[0][1],
                               _subtitle(scale, all_found), chapters)
        write_text(out / "report.html", page, force=True)
        show(f"Wrote {out / 'report.html'}")
    return status


def _definition(study: Study, scale: Scale, directory: SweepDirectory, data_dir: Path | None) -> Definition:
    """Return the sweep of a study, with its data and directory."""
    shipped = read_definition(study.sweep_file(scale), known_options())
    cases = []
    for case in shipped.cases:
        options = tuple((name, value.replace("{directory}", str(directory.path))) for name, value in case.options)
        cases.append(with_data(type(case)(case.command, options, case.repeat), data_dir))
    return Definition(f"{shipped.name}-{scale}", tuple(dict.fromkeys(cases)))


def _prepare(study: Study, scale: Scale, directory: SweepDirectory) -> None:
    """Run the commands before the cases, unless they have succeeded before."""
    prepared = directory.path.with_name(f"{directory.path.name}.prepared")
    for number, command in enumerate((study.before or {}).get(scale, ())):
        done = prepared / str(number)
        if done.exists():
            continue
        words = _words(command, "{directory}", prepared)
        done.parent.mkdir(parents=True, exist_ok=True)
        if _charact(*words):
            raise UserError(f"charact {' '.join(words)} failed: see its message above")
        done.touch()


def _words(command: str, name: str, path: Path) -> list[str]:
    """Return the words of a command, in which `name` stands for a path."""
    return [word.replace(name, str(path)) for word in shlex.split(command)]


def _charact(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "charact", *words], check=False).returncode


def _after(study: Study, scale: Scale, directory: SweepDirectory, found: list[CaseStatus]) -> list[Run]:
    """Run the command after each case, unless its run exists; return these runs."""
    runs = []
    command = (study.after_each or {}).get(scale)
    for row in found:
        if command is None or row.state != "ok" or row.outcome is None:
            continue
        name = f"after-{row.case.id}"
        place = directory.path / "after"
        if not list(place.glob(f"*-{name}-*")):
            words = _words(command, "{run}", directory.runs / str(row.outcome.run))
            if _charact(*words, "--out", str(place), "--name", name, "--quiet"):
                warn(f"charact {' '.join(words)} failed: the chapter lacks its numbers")
        runs += [presentable(load_run(path)) for path in sorted(place.glob(f"*-{name}-*"))
                 if not path.name.startswith(".")][:1]
    return runs


def _other_runs(study: Study, scale: Scale, machines: Sequence[Path]) -> list[Run]:
    """Return the runs of a study in the directories of other machines."""
    runs = []
    for machine in machines:
        directory = machine / f"{study.name}-{scale}"
        found = [path.parent for folder in ("runs", "after")
                 for path in sorted(directory.glob(f"{folder}/[!.]*/run.json"))]
        if not found:
            raise UserError(f"--machine: {directory} has no runs: name the directory (--out) of charact study "
                            f"{study.name} --{scale} on another machine")
        runs += [presentable(load_run(path)) for path in found]
    return runs


def _chapter(study: Study, scale: Scale, runs: list[Run], found: list[CaseStatus]) -> Body:
    """Return the chapter of a study: its data, figures, deviations, and cases that did not succeed."""
    body = study.chapter(runs)
    failed = [(row.case.label, row.outcome.reason if row.outcome is not None and row.outcome.reason else row.state)
              for row in found if row.state != "ok"]
    blocks = [Block(title="Deviations from the publication", note=" ".join(study.deviations[scale]))]
    blocks += [Block(title="Cases without a result", missing=failed)] if failed else []
    claims, *others = body.blocks
    tidied = [claims, *(replace(block, table=without_constants(with_footnotes(block.table))) if block.table else block
                        for block in others)]
    return Body(lead=f"{_data_line(found)} After: {study.source}. {RULE}", blocks=[*tidied, *blocks])


def _data_line(found: list[CaseStatus]) -> str:
    """Return which data the cases read, in a sentence."""
    read = [dict(row.case.options) for row in found]
    real = sorted({options["data"] for options in read if "data" in options})
    if not real:
        return "All data are synthetic."
    parts = sorted({options["data"] for options in read if options.get("split") == "test" and "data" in options})
    only = f" (of {', '.join(parts)} the test split alone)" if parts else ""
    return f"Real data: {', '.join(real)}{only}; all others are synthetic."


def _subtitle(scale: Scale, found: list[CaseStatus]) -> str:
    """Return the first line of the report: on which data it was run, and how much."""
    form = "Quick form: a part of each published protocol." if scale == "quick" else "The published protocols in full."
    return f"{_data_line(found)} {form}"


_HOLDOUT = "0.1"
"""Share of the test split that validates a training on the rest, if there is no training split."""


def with_data(case: SweepCase, data_dir: Path | None) -> SweepCase:
    """Return the case with options that name its data.

    A data set that the directory lacks is replaced by synthetic data. If the directory has the test split alone, that
    is read, and a training is validated on a tenth of it.
    """
    options = dict(case.options)
    name = options.get("data")
    if name is None:
        return case
    directory = data_dir
    if data_dir is not None and data_dir.is_dir():  # the directory of its name, with or without `_` and `-`, is first
        plain = name.replace("_", "").replace("-", "")
        directory = next((path for path in sorted(data_dir.iterdir()) if path.is_dir()
                          and path.name.replace("_", "").replace("-", "").lower() == plain), data_dir)
    split = next((split for split in ("train", "test") if directory is not None and _has(name, directory, split)), None)
    if directory is None or split is None:
        for option in ("data", "protocol"):
            options.pop(option, None)
        if find_dataset(name).num_classes is not None:
            options["synthetic"] = f"classes={find_dataset(name).num_classes}"
    else:
        options["data-dir"] = str(directory)
        if split == "test" and case.command != "infer":
            options["split"] = split
            options.pop("protocol", None)
            if case.command == "train":
                options["holdout"] = _HOLDOUT
    return replace(case, options=tuple(sorted(options.items())))


@cache
def _has(name: str, directory: Path, split: Split) -> bool:
    """Return whether a directory has a split of a data set, undamaged."""
    spec = find_dataset(name)
    try:
        return isinstance(spec, StoredDatasetSpec) and spec.load(directory, split) is not None
    except UserError:
        return False
