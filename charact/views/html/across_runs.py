"""The tables across several runs: a row for each case of each run, equal cases next to each other."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from charact.analysis.bricks.record_tables import model_summary
from charact.analysis.bricks.run_tables import suite_summary
from charact.analysis.common.pass_status import passes_taken
from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.memory.composition import is_memory_run, memory_peaks
from charact.analysis.operations.timings import operation_cases
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.profile.repeats import repeated_cases
from charact.analysis.training.stages import inference_summary, training_summary
from charact.core.errors import UserError
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, ITERATION, PEAK, RATE, SAMPLES, STATUS, Block, status_reason
from charact.views.html.sections import brick_models, bricks, inference, memory_overview, operation_tables, training
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, Table, limited, table

MAX_ROWS = 2000
"""Rows of one table: a browser scrolls through more, but slowly."""
_MIN_REPEATS = 3
"""If a case occurs in at least this many runs, a table summarizes each case over its runs."""
_MAX_MEASURED = 12
"""Records of constructed models that are drawn in one figure: more have no colours of their own."""
_NUM_NAMED = 4

_RUN = Column("run", "Run", unbroken=True)


def counted(names: Sequence[str], most: int = _NUM_NAMED) -> list[str]:
    """Return the first names, and in place of the others how many there are."""
    return list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} others"]


def counted_names(names: Sequence[str]) -> str:
    """Return some names as one text; of many, each once, and only the first ones."""
    return ", ".join(names if len(names) <= _NUM_NAMED else counted(list(dict.fromkeys(names))))


class Summary:
    """Headline numbers of the cases of many runs. Only these numbers and a few constructed records are kept."""

    def __init__(self) -> None:
        self._num_runs = 0
        self._frames: defaultdict[str, list[pd.DataFrame]] = defaultdict(list)
        self._measured: list[Run] = []
        self._damaged: list[str] = []

    def add(self, run: Run) -> None:
        """Take the headline numbers of a run; one with a damaged table is left out, and named."""
        try:
            found = {name: kind.cases(run) for name, kind in _KINDS.items() if kind.belongs_to(run)}
        except UserError as error:
            self._damaged.append(str(error))
            return
        for name, cases in found.items():
            if len(cases):
                self._frames[name].append(cases.assign(run=run.run_id, position=self._num_runs))
        self._num_runs += 1
        if len(self._measured) < _MAX_MEASURED and brick_models.has_measured(run):
            self._measured.append(run)

    def cases(self, kind: str) -> pd.DataFrame:
        """Return the headline numbers of one kind of case, equal cases next to each other."""
        frames = self._frames[kind]
        cases = pd.concat([frame.dropna(axis="columns", how="all") for frame in frames])
        return cases.reindex(columns=frames[0].columns).sort_values(["case", "position"], ignore_index=True)

    def tables(self) -> list[Table]:
        """Return the tables of each kind of case that there is."""
        return [limited(each, MAX_ROWS, "charact export") for name, kind in _KINDS.items() if name in self._frames
                for each in kind.tables(self.cases(name))]  # fmt: skip

    def blocks(self) -> list[Block]:
        """Return the damage that was found, and what several records of constructed models come to."""
        blocks = [Block(note=fmt.missing(problem)) for problem in self._damaged]
        blocks += brick_models.side_by_side(self._measured)
        for run in self._measured:
            run.release()
        return blocks


def _profiles(run: Run) -> pd.DataFrame:
    cases = case_summary(run).query("kind == 'profile'")
    if cases.empty:
        return cases
    found = bottlenecks(run)[["case", "verdict", "share_frac", "reason"]]
    return cases.merge(found.rename(columns={"reason": "verdict_reason"}), on="case", how="left")


def _profile_tables(cases: pd.DataFrame) -> list[Table]:
    shown = cases.assign(
        interval=[fmt.interval(row.low_s, row.high_s, status_reason(row) or "fewer than 6 iterations")
                  for row in fmt.rows(cases)],
        bottleneck=[_bottleneck(row) for row in fmt.rows(cases)],
    )  # fmt: skip
    columns = [
        CASE, _RUN, STATUS, ITERATION, _INTERVAL, SAMPLES, PEAK, _FLOP, RATE,
        Column("bottleneck", "Bottleneck", unbroken=True),  # last: a reason may be long
    ]  # fmt: skip
    every = table(shown, "Every profiled case of every run", columns)
    if cases["case"].value_counts().max() < _MIN_REPEATS:
        return [every]
    return [_repeats_table(repeated_cases(cases)), every]


def _bottleneck(row: Any) -> str:
    if not isinstance(row.verdict, str):
        return fmt.missing(status_reason(row) or row.verdict_reason)
    return row.verdict if fmt.absent(row.share_frac) else f"{row.verdict}, {fmt.share(row.share_frac)}"


def _few(row: Any) -> str:
    return "fewer than 6 runs" if row.num_ok else "no run of it ended well"


_INTERVAL = Column("interval", "95 % interval", meaning="of the median", unbroken=True)
_FLOP = Column("flop", "FLOP", fmt.num_flop, "counted per iteration, 1 MAC = 2 FLOP",
               reason=lambda row: status_reason(row) or "not measured")  # fmt: skip


def _repeats_table(repeats: pd.DataFrame) -> Table:
    words = repeats.assign(
        interval=[fmt.interval(row.low_s, row.high_s, _few(row)) for row in fmt.rows(repeats)],
        runs=[f"{row.num_runs:,}" if row.num_ok == row.num_runs else f"{row.num_ok:,} of {row.num_runs:,} ended well"
              for row in fmt.rows(repeats)],
        bottleneck=[fmt.missing("no verdict") if not row.num_verdict else
                    row.verdict if row.num_verdict == row.num_ok else f"{row.verdict} in {row.num_verdict} runs"
                    for row in fmt.rows(repeats)],
    )  # fmt: skip
    columns = [
        CASE, Column("runs", "Runs", meaning="that hold the case", unbroken=True),
        Column("median_s", "Iteration", fmt.seconds, "median over the runs of the median iterations", _few),
        _INTERVAL,
        Column("fastest_s", "Fastest", fmt.seconds, "median iteration of the fastest run", _few),
        Column("slowest_s", "Slowest", fmt.seconds, "median iteration of the slowest run", _few),
        Column("bottleneck", "Bottleneck", meaning="the most frequent verdict", unbroken=True), PEAK, _FLOP, RATE,
    ]  # fmt: skip
    return table(words, "Cases over their runs", columns)


def _took(name: str) -> Callable[[Run], bool]:
    return lambda run: name in passes_taken(run)


def _of(headlines: Callable[..., Table]) -> Callable[[pd.DataFrame], list[Table]]:
    return lambda cases: [headlines(cases, _RUN)]


@dataclass(frozen=True)
class _Kind:
    """Headline numbers of one kind of case: which runs have any, what they are, and how those of all runs are shown."""

    belongs_to: Callable[[Run], bool]
    cases: Callable[[Run], pd.DataFrame]
    tables: Callable[[pd.DataFrame], list[Table]]


_KINDS = {
    "profile": _Kind(lambda run: True, _profiles, _profile_tables),
    "training": _Kind(_took("training"), training_summary, _of(training.headlines)),
    "inference": _Kind(_took("inference"), inference_summary, _of(inference.headlines)),
    "memory": _Kind(is_memory_run, memory_peaks, _of(memory_overview.headlines)),
    "operation": _Kind(_took("ops"), operation_cases, _of(operation_tables.headlines)),
    "bricks": _Kind(_took("bricks"), suite_summary, _of(bricks.suites)),
    "construction": _Kind(_took("construct"), model_summary, _of(brick_models.headlines)),
}
