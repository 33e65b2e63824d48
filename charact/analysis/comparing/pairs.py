"""Cases that two sides share, and what both measured of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from charact.analysis.comparing.matching import matched_cases
from charact.analysis.comparing.sides import Side
from charact.analysis.comparing.statistics import Judgement, Sample, judged, pooled
from charact.store import Run

JUDGEMENT = ["ratio", "low", "high", "p_value", "significant", "reason"]
"""Columns of a ratio to the baseline; what they hold is told at `statistics.judged`."""

_NUMBERS = ["ratio", "low", "high", "p_value"]


@dataclass(frozen=True)
class Pair:
    """A case in the baseline and on a side: what was measured of its parts, by name; and why of a side nothing was.

    `place` is the side's first run of the case, and the case's identifier there.
    """

    case: str
    side: str
    base: dict[str, Sample]
    new: dict[str, Sample]
    base_reason: str | None
    new_reason: str | None
    place: tuple[Run, str]

    def values(self, name: str) -> list[float | None]:
        """A part's numbers, in the baseline and here."""
        return [side[name].value if name in side else None for side in (self.base, self.new)]

    def judged(self, name: str) -> Judgement:
        """The ratio of a part's two numbers; without one, with the reason, where a side lacks it."""
        base, new = self.base.get(name), self.new.get(name)
        if base is not None and new is not None:
            return judged(base, new)
        if self.base_reason or self.new_reason:
            return Judgement(None, reason=self.new_reason or f"in the baseline: {self.base_reason}")
        if base is None and new is None:
            return Judgement(None, reason="not measured")
        return Judgement(None, reason="not in the baseline" if base is None else "not here")


def pairs(sides: Sequence[Side], measured: Callable[[Run], dict[tuple[str, str], Sample]]) -> Iterator[Pair]:
    """Matched cases, of each side but the baseline, in the order of `matched_cases`.

    Args:
        sides: the baseline first.
        measured: samples of a run, by the case's identifier in it and the part's name.
    """
    runs = {(side.label, number): run for side in sides for number, run in enumerate(side.runs)}
    found = {place: _by_case(measured(run)) for place, run in runs.items()}
    for case, rows in matched_cases(sides).groupby("case", sort=False):
        of_side = {str(side): _entries(some) for side, some in rows.groupby("side", sort=False)}
        base, base_reason = _pooled(of_side.pop(sides[0].label), found)
        for side, entries in of_side.items():
            new, new_reason = _pooled(entries, found)
            place = runs[side, entries[0]["run"]], entries[0]["run_case"]
            yield Pair(str(case), side, base, new, base_reason, new_reason, place)


def typed(rows: Sequence[Sequence[object]], columns: list[str], numbers: list[str]) -> pd.DataFrame:
    """A table of judgements: `columns`, those of `JUDGEMENT` last, of which `numbers` are numbers, too."""
    frame = pd.DataFrame(rows, columns=[*columns, *JUDGEMENT])
    texts = [column for column in columns if column not in numbers]
    kinds = dict.fromkeys([*texts, "reason"], "str") | dict.fromkeys([*numbers, *_NUMBERS], "float64")
    return frame.astype(kinds | {"significant": "bool"})


def _by_case(samples: dict[tuple[str, str], Sample]) -> dict[str, dict[str, Sample]]:
    cases: dict[str, dict[str, Sample]] = {}
    for (case, name), sample in samples.items():
        cases.setdefault(case, {})[name] = sample
    return cases


def _entries(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    return rows.to_dict("records")


def _pooled(
    entries: list[dict[Any, Any]], found: dict[tuple[str, int], dict[str, dict[str, Sample]]]
) -> tuple[dict[str, Sample], str | None]:
    """A case's samples over a side's runs, by name; and why there are none."""
    of_runs = [found[entry["side"], entry["run"]].get(entry["run_case"], {}) for entry in entries]
    names = dict.fromkeys(name for samples in of_runs for name in samples)
    reason = next((entry["reason"] or entry["status"] for entry in entries if entry["status"] != "ok"), None)
    return {name: pooled([samples[name] for samples in of_runs if name in samples]) for name in names}, reason
