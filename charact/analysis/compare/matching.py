"""Groups of runs to compare, and matching of their equal cases; device and machine may differ."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.analysis.common.cache import memoize
from charact.analysis.profile.case_summary import case_kinds
from charact.record.reader import Run

ENDINGS = ("decided", "time", "repeat", "interrupted", "untimed")
"""Reasons to stop: every case is decided, the time is up, the given number is reached, Ctrl-C, nothing was timed."""


@dataclass(frozen=True)
class Turns:
    """The end of a measurement of two commands by turns, each of which has one run of both.

    `ending` is one of `ENDINGS`. `max_minutes` is the limit of the time; None if the number of turns was given.
    """

    num_turns: int
    ending: str
    max_minutes: float | None = None

    @property
    def is_sequential(self) -> bool:
        """Return whether the times decided on the number of turns, or might have."""
        return self.ending != "repeat"


@dataclass(frozen=True, eq=False)
class Group:
    """A group of runs with the same setup; several runs are repeats, pooled for each case.

    An analysis takes a sequence of groups with unique labels; the first is the baseline. Columns `side` hold labels.
    """

    label: str
    runs: tuple[Run, ...]
    found: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Results of analyses with this group as the baseline, cached by `memoize` and `gathered`."""
    on_run: Callable[[Run], object] = field(default=lambda run: None, repr=False)
    """Called after each read of a run of this group."""
    turns: Turns | None = None
    """How the measurement by turns ended that ran all groups; None if there was none."""
    ignored: frozenset[str] = frozenset()
    """Fields of `IDENTITY` in which matched cases may differ; the same for all groups, see `ignoring_differences`."""


IDENTITY = {
    "workload": "workload", "kind": "kind", "mode": "mode", "variant": "variant", "data": "data",
    "input_size": "input size", "output_size": "output size", "batch_size": "batch size", "precision": "precision",
    "cache": "cache", "attention": "attention", "lora_rank": "LoRA rank",
    "accumulate": "accumulated batches", "parallel": "parallel", "world_size": "world size", "rank": "rank",
    "compiled": "compiled",
    "channels_last": "channels last", "hot": "inputs hot in a cache",
}  # fmt: skip
"""Fields that identify a case, with their display names, most important first; device and machine are ignored."""
_DEFAULTS: dict[str, Any] = {"accumulate": 1, "world_size": 1, "rank": 0, "compiled": False, "channels_last": False,
                             "hot": False, "attention": "PyTorch's choice", "lora_rank": 0}
_WORDS = (*IDENTITY.values(), "repeat in its run")
"""Display names for the values of a key."""

_NEVER_IGNORED = ("workload", "kind", "rank")
"""Fields in which matched cases never differ."""

Key = tuple[Any, ...]


def ignoring_differences(sides: Sequence[Group]) -> list[Group]:
    """Return the groups, if none shares a case with the first, with those fields ignored of which they share no value.

    Fields are ignored only if each case then has one counterpart at most: otherwise the groups are returned as they
    are. So two runs with batches of 32 and of 64 can be compared, and two runs with two batch sizes each cannot.
    """
    if len(matched_cases(sides)):
        return list(sides)
    keys = _keys(sides)
    base, *others = ({name: set(rows[name]) for name in IDENTITY} for rows in (
        keys[keys["side"] == side.label] for side in sides))
    differing = frozenset(name for name in IDENTITY if name not in _NEVER_IGNORED
                          and all(base[name].isdisjoint(other[name]) for other in others))
    relaxed = [replace(side, ignored=differing, found={}) for side in sides]
    is_unique = not _cases(relaxed)["key"].map(lambda key: key[-1] > 0).any()
    return relaxed if is_unique and len(matched_cases(relaxed)) else list(sides)


def ignored_differences(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the values of the ignored fields in each group.

    Columns: name, the display name of a field; side; values, those of the group's cases, as text.
    """
    keys = _keys(sides)
    rows = [[IDENTITY[name], side.label, ", ".join(map(_text, keys.loc[keys["side"] == side.label, name].unique()))]
            for name in IDENTITY if name in sides[0].ignored for side in sides]
    return pd.DataFrame(rows, columns=["name", "side", "values"])


def _keys(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the values of `IDENTITY` of each group's cases, ignored ones included: columns side and the fields."""
    rows = _cases([replace(side, ignored=frozenset(), found={}) for side in sides])
    values = pd.DataFrame([key[:-1] for key in rows["key"]], columns=list(IDENTITY), dtype="object")
    return values.assign(side=rows["side"])


@memoize
def matched_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the cases that the baseline and another group have, including failed ones.

    Columns: case, the identifier in the baseline, without the device if identifiers differ, and without the values of
    ignored fields; side, the group's label; run, the position in the group's runs; run_case, the case's identifier in
    that run; status and reason of the case.
    One row for each case, group and run that has it, in the order of the baseline's cases, groups and runs.
    """
    rows = _cases(sides)
    holders = rows.groupby("key", sort=False)["side"].agg(set)
    baseline = sides[0].label
    rows = rows[rows["key"].map(lambda key: baseline in holders[key] and len(holders[key]) > 1).astype(bool)]
    names = _names(rows[rows["side"] == baseline], rows, has_ignored=bool(sides[0].ignored))
    rows = rows.assign(case=rows["key"].map(names).astype("str"))
    order = {case: number for number, case in enumerate(names.values())}
    rows = rows.sort_values("case", key=lambda cases: cases.map(order), kind="stable", ignore_index=True)
    return rows[["case", "side", "run", "run_case", "status", "reason"]]


@memoize
def unmatched_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return, for each other group, the cases that either it or the baseline lacks.

    Columns: case; side, the group that has it; missing_in, the group that lacks it; why, the differences from
    the most similar case of that group: the case's own value first.
    """
    once = _cases(sides).drop_duplicates(["side", "key"])
    identifiers: dict[str, dict[Key, str]] = {side.label: {} for side in sides}
    for side, key, identifier in zip(once["side"], once["key"], once["run_case"], strict=True):
        identifiers[side][key] = identifier
    baseline = sides[0].label
    rows = []
    for other in sides[1:]:
        for side, missing_in in ((baseline, other.label), (other.label, baseline)):
            similar = _Similar(list(identifiers[missing_in]))
            rows += [[identifier, side, missing_in, similar.differences(key)]
                     for key, identifier in identifiers[side].items() if key not in identifiers[missing_in]]
    return pd.DataFrame(rows, columns=["case", "side", "missing_in", "why"]).astype("str")


@memoize
def _cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return every case of every run: columns key, side, run, run_case, status, reason."""
    rows = []
    variants: dict[str, Any] = {}
    for side in sides:
        for position, run in enumerate(side.runs):
            seen: Counter[Key] = Counter()
            options = run.manifest.get("options", {})
            for facts, entry, kind in zip(run.manifest["cases"], run.entries, case_kinds(run), strict=True):
                values = {name: facts.get(name, options.get(name)) for name in IDENTITY} | {"kind": kind}
                if (digest := entry.passes.bricks.suite_digest) is not None:
                    # Equal suites of bricks have the same variant, that of the first one.
                    values["variant"] = variants.setdefault(digest, entry.variant)
                identity = tuple(None if name in side.ignored else _DEFAULTS.get(name) if value is None else value
                                 for name, value in values.items())
                # Equal cases of a run, as on two devices, are distinguished by their order.
                rows.append([(*identity, seen[identity]), side.label, position, entry.case, entry.status, entry.reason])
                seen[identity] += 1
    return pd.DataFrame(rows, columns=["key", "side", "run", "run_case", "status", "reason"])


def _names(baseline: pd.DataFrame, rows: pd.DataFrame, *, has_ignored: bool) -> dict[Key, str]:
    """Return a unique name for each key: the baseline's identifier, without its device if identifiers differ.

    Where fields are ignored, only the parts of the identifier remain that all groups have. If several cases share a
    name, the values in which they differ follow.
    """
    identifiers = rows.groupby("key")["run_case"].unique()
    names: dict[Key, str] = {}
    for key, identifier in zip(baseline["key"], baseline["run_case"], strict=True):
        others = [other.split("-") for other in identifiers[key] if other != identifier]
        parts = identifier.split("-")
        if has_ignored:
            parts = [part for part in parts if all(part in other for other in others)]
        elif others and parts[-1].startswith(("cpu", "cuda", "mps", "xpu")):
            parts.pop()
        names.setdefault(key, "-".join(parts) or identifier)
    sharing: dict[str, list[Key]] = defaultdict(list)
    for key, name in names.items():
        sharing[name].append(key)
    differs = {name: [len(set(values)) > 1 for values in zip(*keys, strict=True)] for name, keys in sharing.items()}
    for key, name in names.items():
        parts = [_text(value) if isinstance(value, str) and value else f"{word}: {_text(value)}"
                 for word, value, is_different in zip(_WORDS, key, differs[name], strict=True) if is_different]
        names[key] = f"{name} ({', '.join(parts)})" if parts else name
    return names


class _Similar:
    """Cases of one group, to find the most similar one to a case of another group."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._of_workload: dict[Any, list[Key]] = defaultdict(list)
        for key in keys:
            self._of_workload[key[0]].append(key)
        self._codes: dict[Any, NDArray[np.int64]] = {}
        self._code_of: dict[Any, int] = {}

    def differences(self, key: Key) -> str:
        """Return, as text, how a case differs from the most similar case of the same workload."""
        if not self._of_workload:
            return "it has no cases"
        if key[0] not in self._of_workload:
            return f"it has no case of {key[0]}"
        of_workload = self._of_workload[key[0]]
        if key[0] not in self._codes:
            self._codes[key[0]] = np.array([self._coded(other) for other in of_workload])
        nearest = of_workload[int((self._codes[key[0]] != self._coded(key)).sum(axis=1).argmin())]
        return ", ".join(f"{word} {_text(mine)} here, {_text(theirs)} there"
                         for word, mine, theirs in zip(_WORDS, key, nearest, strict=True) if mine != theirs)

    def _coded(self, key: Key) -> list[int]:
        return [self._code_of.setdefault(value, len(self._code_of)) for value in key]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value in (None, "") else str(value)
