"""What torch.compile did in each case: graphs, breaks between them, and recompilations with their reasons."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from charact.record.manifest_program import Compilations
from charact.record.reader import Run

COUNTS = ("num_graphs", "num_graph_breaks", "num_recompilations")
_EVENT = ["kind", "reason", "file", "line", "text", "num_times"]


def compile_counts(run: Run) -> pd.DataFrame:
    """Return the numbers of compilations of each case that compiled; of a watched program, over the whole program.

    Columns: case; num_graphs; num_graph_breaks, lines that break a graph; num_recompilations.
    """
    rows = [[case, *(getattr(compilations, name) for name in COUNTS)] for case, compilations in _recorded(run)]
    return pd.DataFrame(rows, columns=["case", *COUNTS])


def compile_events(run: Run) -> pd.DataFrame:
    """Return the recorded graph breaks and recompilations, at most 20 of each case.

    Columns: case; kind ('graph break' or 'recompilation'); reason; file, line and text (its source code) of the line
    that breaks the graph or reads what changed, null if not known; num_times, see `CompileEvent`.
    """
    rows = [[case, *(getattr(event, name) for name in _EVENT)] for case, compilations in _recorded(run)
            for event in compilations.events]
    return pd.DataFrame(rows, columns=["case", *_EVENT]).astype({"line": "Int64"})


def counts_text(counts: Any) -> str:
    """Return counts of compilations, with the names of `COUNTS`, as text: 1 graph, 2 graph breaks, 0 recompilations."""
    numbers = {name: getattr(counts, name) or 0 for name in COUNTS}
    return ", ".join(f"{number} {name.removeprefix('num_').removesuffix('s').replace('_', ' ')}{'s' * (number != 1)}"
                     for name, number in numbers.items())


def _recorded(run: Run) -> Iterator[tuple[str, Compilations]]:
    for entry in run.entries:
        timing = entry.passes.timing
        settings = timing.program and timing.program.settings
        compilations = timing.compilations or (settings and settings.compile)
        if compilations:
            yield entry.case, compilations
