"""Choice of the models to construct: those with a stored composition, and others, which are captured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.analysis.bricks.run_tables import is_brick_run
from charact.bricks.brick import Brick, runs_as
from charact.bricks.capture.sources import SAVED_SUFFIX
from charact.bricks.suite.composition import Composition, load_compositions
from charact.commands.bricks.models import Asked, captured_sources
from charact.core.errors import UserError
from charact.execution.interrupt import Interrupt
from charact.record.manifest import check_holds
from charact.record.reader import Run, load_run
from charact.record.redaction import expanded_path

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
    """Load the run of a suite from a directory.

    Raises:
        UserError: the directory holds another record, or none.
    """
    run = load_run(path)
    if not is_brick_run(run):
        raise UserError(f"{path} is not a run of a suite: charact bricks run makes one")
    check_holds(run.manifest, path, machine=("fingerprint",), software=("torch",), options=("threads",))
    return run


def kept_compositions(run: Run, directory: Path | None) -> list[Composition]:
    """Read the compositions of the suite that a run timed; return an empty list if they are not available.

    Args:
        run: run of the suite.
        directory: directory given by the user.

    Raises:
        UserError: the given directory has none, or they cannot be read.
    """
    if directory is not None:
        return load_compositions(directory)
    recorded = run.manifest["options"].get("compositions")
    place = expanded_path(recorded) if recorded else None
    return load_compositions(place) if place is not None and place.is_dir() else []


def chosen_models(asked: Asked, kept: Sequence[Composition], runs: Sequence[Run], quiet: bool, interrupt: Interrupt
                  ) -> Models:
    """Return the models that the user names: stored compositions, else newly captured models with the suite's cut.

    A name selects all stored compositions of that name that fit the options; `all` selects every timed model.

    Raises:
        UserError: a name is unknown, there are no compositions for `all`, or nothing could be captured.
    """
    timed = set.intersection(*(_timed(run) for run in runs))
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


def _timed(run: Run) -> set[tuple[str, str]]:
    """Return the timed modes and precisions."""
    return {(entry["mode"], runs_as(entry["precision"])) for entry in run.manifest["cases"]}


def is_called(composition: Composition, name: str) -> bool:
    """Return whether a name selects a composition."""
    return name in (composition.model, composition.case, composition.facts.get("asked_as"))


def _captured(asked: Asked, kept: Sequence[Composition], run: Run, quiet: bool, interrupt: Interrupt) -> Models:
    """Capture a model with the suite's cut, or use its stored composition under another name."""
    cases = run.manifest["cases"]
    facts = cases[0]["passes"]["bricks"]
    g, method = facts["g"], facts["cut_method"]
    modes, precisions = (list(dict.fromkeys(entry[name] for entry in cases)) for name in ("mode", "precision"))
    if asked.names[0].endswith(SAVED_SUFFIX):
        modes, precisions = [], []  # an exported program has one of each
    by_case = {each.case: each for each in kept}
    asked = replace(asked, modes=modes, precisions=precisions)
    sources = asked.sources()
    known = [by_case[source.id] for source in sources if source.id in by_case]
    models = [each.model for each in captured_sources(
        asked, [source for source in sources if source.id not in by_case], g, method, None, quiet, interrupt)]
    return Models([*known, *(model.composition for model in models)],
                  {brick.id: brick for model in models for brick in model.bricks})
