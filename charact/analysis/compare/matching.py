"""Matching of equal cases across groups of runs; device and machine may differ."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.analysis.compare.run_groups import Group, memoize_comparison
from charact.analysis.profile.case_summary import case_kinds
from charact.record.case_facts import pass_facts
from charact.record.reader import Run

IDENTITY = {
    "workload": "workload", "kind": "kind", "mode": "mode", "variant": "variant", "data": "data",
    "input_size": "input size", "batch_size": "batch size", "precision": "precision",
    "accumulate": "accumulated batches", "parallel": "parallel", "world_size": "world size", "rank": "rank",
    "compiled": "compiled",
    "channels_last": "channels last", "hot": "inputs hot in a cache",
}  # fmt: skip
"""Fields that identify a case, with their display names, most important first; device and machine are ignored."""
_DEFAULTS: dict[str, Any] = {"accumulate": 1, "parallel": None, "world_size": 1, "rank": 0, "compiled": False,
                             "channels_last": False, "hot": False}

_WORDS = (*IDENTITY.values(), "repeat in its run")
"""Display names for the values of a key."""

Key = tuple[Any, ...]


@memoize_comparison
def matched_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the cases that the baseline and another group have, including failed ones.

    Columns: case, the identifier in the baseline, without the device if identifiers differ; side, the group's label;
    run, the position in the group's runs; run_case, the case's identifier in that run; status and reason of the case.
    One row for each case, group and run that has it, in the order of the baseline's cases, groups and runs.
    """
    rows = _cases(sides)
    holders = rows.groupby("key", sort=False)["side"].agg(set)
    baseline = sides[0].label
    rows = rows[rows["key"].map(lambda key: baseline in holders[key] and len(holders[key]) > 1).astype(bool)]
    names = _names(rows[rows["side"] == baseline], rows)
    rows = rows.assign(case=rows["key"].map(names).astype("str"))
    order = {case: number for number, case in enumerate(names.values())}
    rows = rows.sort_values("case", key=lambda cases: cases.map(order), kind="stable", ignore_index=True)
    return rows[["case", "side", "run", "run_case", "status", "reason"]]


@memoize_comparison
def unmatched_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return, for each other group, the cases that either it or the baseline lacks.

    Columns: case; side, the group that has it; missing_in, the group that lacks it; why, the differences from
    the most similar case of that group: the case's own value first.
    """
    rows = _cases(sides)
    keys = {side.label: list(dict.fromkeys(rows.loc[rows["side"] == side.label, "key"])) for side in sides}
    once = rows.drop_duplicates(["side", "key"])
    first = dict(zip(zip(once["side"], once["key"], strict=True), once["run_case"], strict=True))
    baseline = sides[0].label
    found = []
    for other in sides[1:]:
        for side, missing_in in ((baseline, other.label), (other.label, baseline)):
            there = _Others(keys[missing_in])
            found += [[first[side, key], side, missing_in, there.why_not(key)]
                      for key in keys[side] if key not in there]
    return pd.DataFrame(found, columns=["case", "side", "missing_in", "why"]).astype("str")


@memoize_comparison
def _cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return every case of every run: columns key, side, run, run_case, status, reason."""
    found = []
    suites: dict[str, Any] = {}
    for side in sides:
        for position, run in enumerate(side.runs):
            seen: Counter[Key] = Counter()
            for entry, kind in zip(run.manifest["cases"], case_kinds(run), strict=True):
                identity = _identity(run, _by_suite(entry, suites), kind)
                # Equal cases of a run, as on two devices, are distinguished by their order.
                found.append([(*identity, seen[identity]), side.label, position, entry["case"],
                              entry.get("status"), entry.get("reason")])  # fmt: skip
                seen[identity] += 1
    return pd.DataFrame(found, columns=["key", "side", "run", "run_case", "status", "reason"])


def _by_suite(entry: dict[str, Any], suites: dict[str, Any]) -> dict[str, Any]:
    """Return a case's entry; give equal suites of bricks the same variant, that of the first one."""
    digest = pass_facts(entry, "bricks").get("suite_digest")
    return entry if digest is None else entry | {"variant": suites.setdefault(digest, entry.get("variant"))}


def _identity(run: Run, entry: dict[str, Any], kind: str) -> Key:
    options = run.manifest.get("options", {})
    values = {name: entry.get(name, options.get(name)) for name in IDENTITY} | {"kind": kind}
    return tuple(_DEFAULTS.get(name) if value is None else value for name, value in values.items())


def _names(baseline: pd.DataFrame, rows: pd.DataFrame) -> dict[Key, str]:
    """Return a unique name for each key: the baseline's identifier, without its device if identifiers differ."""
    identifiers = rows.groupby("key")["run_case"].nunique()
    names: dict[Key, str] = {}
    for key, identifier in zip(baseline["key"], baseline["run_case"], strict=True):
        bare, _, last = identifier.rpartition("-")
        on_device = last.startswith(("cpu", "cuda", "mps", "xpu"))
        names.setdefault(key, bare if on_device and identifiers[key] > 1 else identifier)
    return _unique_names(names)


def _unique_names(names: dict[Key, str]) -> dict[Key, str]:
    """Return unique names: if several cases share a name, append the values in which they differ."""
    sharing: dict[str, list[Key]] = {}
    for key, name in names.items():
        sharing.setdefault(name, []).append(key)
    differing = {name: [len(set(values)) > 1 for values in zip(*keys, strict=True)] for name, keys in sharing.items()}
    found = {}
    for key, name in names.items():
        parts = [_labelled(word, value)
                for word, value, differs in zip(_WORDS, key, differing[name], strict=True) if differs]
        found[key] = f"{name} ({', '.join(parts)})" if parts else name
    return found


class _Others:
    """Cases of one group, to find the most similar one to a case of another group."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._of_workload: dict[Any, list[Key]] = {}
        for key in keys:
            self._of_workload.setdefault(key[0], []).append(key)
        self._keys = set(keys)
        self._codes: dict[Any, NDArray[np.int64]] = {}
        self._code_of: dict[Any, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def why_not(self, key: Key) -> str:
        """Return, as text, how a case differs from the most similar case of the same workload."""
        if not self._keys:
            return "it has no cases"
        alike = self._of_workload.get(key[0])
        if alike is None:
            return f"it has no case of {key[0]}"
        if key[0] not in self._codes:
            self._codes[key[0]] = np.array([self._coded(other) for other in alike])
        nearest = alike[int((self._codes[key[0]] != self._coded(key)).sum(axis=1).argmin())]
        return ", ".join(
            f"{word} {_text(mine)} here, {_text(theirs)} there"
            for word, mine, theirs in zip(_WORDS, key, nearest, strict=True) if mine != theirs
        )  # fmt: skip

    def _coded(self, key: Key) -> list[int]:
        """Return an integer code for each value of a key; equal values have equal codes."""
        return [self._code_of.setdefault(value, len(self._code_of)) for value in key]


def _labelled(word: str, value: Any) -> str:
    """Return a value as text; if it is no text, put the name of its field first."""
    return _text(value) if isinstance(value, str) and value else f"{word}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value in (None, "") else str(value)
