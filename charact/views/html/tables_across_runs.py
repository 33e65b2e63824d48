"""Tables over several runs: a row for each case of each run, equal cases next to each other."""

import os
from collections import defaultdict
from collections.abc import Sequence

import pandas as pd

from charact.analysis.profile.case_summary import case_kinds
from charact.core.errors import UserError
from charact.core.text import label
from charact.record.reader import Run
from charact.views.case_kind import all_kinds, shown_as
from charact.views.document import Block
from charact.views.tables import format as fmt
from charact.views.tables.model import Table, limited

MAX_ROWS = 2000
"""Maximum number of rows of one table, so that a browser scrolls fast."""
_MAX_COMPARED = 12
"""Maximum number of runs in one figure, so that colors are distinct."""
_NUM_NAMED = 4


def abbreviated(names: Sequence[str], most: int = _NUM_NAMED) -> list[str]:
    """Return the first names, and the number of the others."""
    return list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} others"]


def abbreviated_names(names: Sequence[str]) -> str:
    """Return names as one text; of many, only the first distinct ones."""
    return ", ".join(names if len(names) <= _NUM_NAMED else abbreviated(list(dict.fromkeys(names))))


def groups(runs: Sequence[Run]) -> list[str]:
    """Return the directory of each run, below the one that holds all: a or b of runs of `charact compare --ab`.

    A text is empty if the run is directly in that directory, or if it is anonymous.
    """
    parents = [run.path.absolute().parent for run in runs]
    below = os.path.commonpath(parents)
    return ["" if str(parent) == below or run.manifest.get("anonymous") else label(str(parent.relative_to(below)))
            for run, parent in zip(runs, parents, strict=True)]


def with_group(name: str, group: str) -> str:
    """Return a name with its group before it: a: train."""
    return f"{group}: {name}" if group else name


class Summary:
    """Headline numbers of the cases of many runs. Only these numbers and a few constructed records are kept."""

    def __init__(self) -> None:
        self._num_runs = 0
        self._frames: defaultdict[str, list[pd.DataFrame]] = defaultdict(list)
        self._compared: defaultdict[str, list[Run]] = defaultdict(list)
        self._damaged: list[str] = []

    def add(self, run: Run, group: str = "") -> None:
        """Add the headline numbers of a run of a group; report a run with a damaged table instead."""
        try:
            present = shown_as(case_kinds(run))
            kinds = [kind for kind in all_kinds() if kind.name in present]
            found = {kind.name: kind.rows(run) for kind in kinds}
            compared = [kind.name for kind in kinds if kind.is_compared(run)]
        except UserError as error:
            self._damaged.append(str(error))
            return
        for name, cases in found.items():
            if len(cases):
                self._frames[name].append(cases.assign(
                    run=with_group(run.run_id, group), group=group, position=self._num_runs))
        self._num_runs += 1
        for name in compared:
            if len(self._compared[name]) < _MAX_COMPARED:
                self._compared[name].append(run)

    def cases(self, kind: str) -> pd.DataFrame:
        """Return the headline numbers of one kind of case, equal cases next to each other."""
        frames = self._frames[kind]
        cases = pd.concat([frame.dropna(axis="columns", how="all") for frame in frames])
        return cases.reindex(columns=frames[0].columns).sort_values(["case", "position"], ignore_index=True)

    def tables(self) -> list[Table]:
        """Return the tables of each kind of case that occurs."""
        return [limited(each, MAX_ROWS, "charact export") for kind in all_kinds() if kind.name in self._frames
                for each in kind.tables(self.cases(kind.name))]  # fmt: skip

    def blocks(self) -> list[Block]:
        """Return the damaged runs, and figures over several records of constructed models."""
        blocks = [Block(note=fmt.missing(problem)) for problem in self._damaged]
        for kind in all_kinds():
            blocks += kind.side_by_side(self._compared[kind.name])
        for run in (run for runs in self._compared.values() for run in runs):
            run.release()
        return blocks
