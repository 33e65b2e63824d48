"""What a study is, and finding the studies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from charact.core.errors import UserError
from charact.core.plugins import modules_in
from charact.core.text import did_you_mean
from charact.record.reader import Run
from charact.views.document import Body

Scale = Literal["quick", "full"]
"""How much of a study is run: minutes on two cores, or as published."""
SCALES: tuple[Scale, ...] = ("quick", "full")


@dataclass(frozen=True)
class Study:
    """A published study that charact repeats.

    Its cases are the sweep file `sweeps/<name>-<scale>.yaml`, in which `{directory}` stands for the directory of the
    sweep.
    """

    name: str
    title: str
    """Title of its chapter."""
    source: str
    """The publication."""
    chapter: Callable[[Sequence[Run]], Body]
    """Builds the chapter from the runs of its cases, in the order of the sweep file. Runs may be missing."""
    deviations: dict[Scale, tuple[str, ...]]
    """How the cases differ from the published protocol, as sentences."""
    before: dict[Scale, tuple[str, ...]] | None = None
    """Commands of charact to run before the cases, as in a shell, without `charact`."""
    after_each: dict[Scale, str] | None = None
    """Command of charact to run for each run of a case, in which `{run}` stands for that run."""
    compares_machines: bool = False
    """Whether its chapter separates the runs of several machines, this machine first."""

    def sweep_file(self, scale: Scale) -> Path:
        """Return the sweep file of its cases."""
        with as_file(files("charact.studies") / "sweeps" / f"{self.name}-{scale}.yaml") as path:
            return path


def all_studies() -> dict[str, Study]:
    """Return every study by name."""
    found = [module.STUDY for module in modules_in("charact.studies.chapters")]
    return {study.name: study for study in sorted(found, key=lambda study: _ORDER.index(study.name))}


_ORDER = ["deep500", "aalto", "northeastern", "dlbricks"]
"""Order of the chapters."""


def find_studies(name: str) -> list[Study]:
    """Return the study with a name, or all of them for `all`."""
    studies = all_studies()
    if name == "all":
        return list(studies.values())
    if name not in studies:
        names = [*studies, "all"]
        hint = did_you_mean(name, names, f"choose from {', '.join(names)}")
        raise UserError(f"unknown study '{name}': {hint}")
    return [studies[name]]
