"""Which cases of several sides are the same: by what they are, whatever they ran on."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.analysis.compare.run_groups import Side, once_a_comparison
from charact.analysis.profile.case_summary import case_kinds
from charact.record.reader import Run

IDENTITY = {
    "workload": "workload", "kind": "kind", "mode": "mode", "variant": "variant", "data": "data",
    "input_size": "input size", "batch_size": "batch size", "precision": "precision",
    "accumulate": "accumulated batches", "world_size": "world size", "rank": "rank", "compiled": "compiled",
    "channels_last": "channels last", "hot": "inputs hot in a cache",
}  # fmt: skip
"""What makes a case the same as another, with the word for it; weightiest first. Device and machine do not."""
_DEFAULTS: dict[str, Any] = {"accumulate": 1, "world_size": 1, "rank": 0, "compiled": False, "channels_last": False,
                             "hot": False}

_WORDS = (*IDENTITY.values(), "repeat in its run")
"""For each value of a key."""

Key = tuple[Any, ...]


@once_a_comparison
def matched_cases(sides: Sequence[Side]) -> pd.DataFrame:
    """Cases of the baseline that another side holds, too, failed ones included.

    Columns: case, the identifier in the baseline, without its device where another side's differs; side, a label; run,
    the position in the side's runs; run_case, the case's identifier there; status and reason of the case. A row a case,
    side and run that has it, in the order of the baseline's cases, sides and runs.
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


@once_a_comparison
def unmatched_cases(sides: Sequence[Side]) -> pd.DataFrame:
    """Cases that the baseline or another side lacks.

    Columns: case; side, which has it; missing_in, the side that lacks it; why, how the nearest case there differs: its
    own value first, then the other side's.
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


@once_a_comparison
def _cases(sides: Sequence[Side]) -> pd.DataFrame:
    """Every case of every run: columns key, side, run, run_case, status, reason."""
    found = []
    suites: dict[str, Any] = {}
    for side in sides:
        for position, run in enumerate(side.runs):
            seen: Counter[Key] = Counter()
            for entry, kind in zip(run.manifest["cases"], case_kinds(run), strict=True):
                identity = _identity(run, _by_suite(entry, suites), kind)
                # Cases of a run that are the same, as on two devices, are told apart by their order.
                found.append([(*identity, seen[identity]), side.label, position, entry["case"],
                              entry.get("status"), entry.get("reason")])  # fmt: skip
                seen[identity] += 1
    return pd.DataFrame(found, columns=["key", "side", "run", "run_case", "status", "reason"])


def _by_suite(entry: dict[str, Any], suites: dict[str, Any]) -> dict[str, Any]:
    """An entry; of a suite of bricks as if its directory had the name that the first of just these bricks has."""
    digest = entry.get("passes", {}).get("bricks", {}).get("suite_digest")
    return entry if digest is None else entry | {"variant": suites.setdefault(digest, entry.get("variant"))}


def _identity(run: Run, entry: dict[str, Any], kind: str) -> Key:
    options = run.manifest.get("options", {})
    values = {name: entry.get(name, options.get(name)) for name in IDENTITY} | {"kind": kind}
    return tuple(_DEFAULTS.get(name) if value is None else value for name, value in values.items())


def _names(baseline: pd.DataFrame, rows: pd.DataFrame) -> dict[Key, str]:
    """A name for each key: the baseline's identifier, without its device where identifiers differ."""
    identifiers = rows.groupby("key")["run_case"].nunique()
    names: dict[Key, str] = {}
    for key, identifier in zip(baseline["key"], baseline["run_case"], strict=True):
        bare, _, last = identifier.rpartition("-")
        on_device = last.startswith(("cpu", "cuda", "mps", "xpu"))
        names.setdefault(key, bare if on_device and identifiers[key] > 1 else identifier)
    return _told_apart(names)


def _told_apart(names: dict[Key, str]) -> dict[Key, str]:
    """The names; those that several cases share, as of runs on other data, followed by what differs between these."""
    sharing: dict[str, list[Key]] = {}
    for key, name in names.items():
        sharing.setdefault(name, []).append(key)
    differing = {name: [len(set(values)) > 1 for values in zip(*keys, strict=True)] for name, keys in sharing.items()}
    found = {}
    for key, name in names.items():
        told = [_told(word, value)
                for word, value, differs in zip(_WORDS, key, differing[name], strict=True) if differs]
        found[key] = f"{name} ({', '.join(told)})" if told else name
    return found


class _Others:
    """Cases of one side, among which those that are nearest to another side's are looked for."""

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
        """How the nearest case of the same workload differs from one."""
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
        """A number for each value of a key, the same for equal values."""
        return [self._code_of.setdefault(value, len(self._code_of)) for value in key]


def _told(word: str, value: Any) -> str:
    """A value that tells by itself what it is of, else with the word for it."""
    return _text(value) if isinstance(value, str) and value else f"{word}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not told" if value in (None, "") else str(value)
