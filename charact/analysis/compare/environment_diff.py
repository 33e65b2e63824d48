"""Differences of environment between two groups of runs: versions, options, machine facts, clocks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare.operator_shares import compositions
from charact.analysis.compare.run_groups import Side

_ARGUMENTS = "options.arguments"
_DERIVED = {"machine.fingerprint"}
_CHANGE_FRAC = 0.01


_MOST_VALUES = 8


def listed(values: Sequence[str]) -> str:
    """Return the first few values as text, with the number of the others."""
    more = len(values) - _MOST_VALUES
    return "; ".join([*values[:_MOST_VALUES], f"{more:,} more"] if more > 0 else values)


def context_changes(base: Side, new: Side) -> pd.DataFrame:
    """Return facts about machine, software and options that differ between two groups.

    Only the number of command-line arguments is compared: their values may be private.

    Columns: fact, such as `software.torch`; base and new, the distinct values over the group's runs; null if no run of
    the group has the fact.
    """
    facts = [_facts(side) for side in (base, new)]
    names = dict.fromkeys(name for of_group in facts for name in of_group)
    rows = [[name, *(of_group.get(name, []) for of_group in facts)] for name in names if name not in _DERIVED]
    changed = [[name, *(listed(each) or None for each in values)] for name, *values in rows if values[0] != values[1]]
    return pd.DataFrame(changed, columns=["fact", "base", "new"], dtype="str")


def clock_changes(base: Side, new: Side, case: str) -> pd.DataFrame:
    """Return clocks of a matched case that differ by more than 1 % between two groups while counters were read.

    Columns: counter; source; base and new, in the unit of the counter's name, means over devices and runs.
    """
    found = compositions([base, new], {case}).get(case, {})
    if len(found) < 2:
        return pd.DataFrame(columns=["counter", "source", "base", "new"])
    sides = [found[side.label].clocks for side in (base, new)]
    rows = pd.concat(sides, axis="columns", keys=["base", "new"], join="inner").reset_index()
    changed = (rows["new"] - rows["base"]).abs() > _CHANGE_FRAC * rows[["base", "new"]].max(axis="columns")
    return rows.loc[changed, ["counter", "source", "base", "new"]].reset_index(drop=True)


def _facts(side: Side) -> dict[str, list[str]]:
    """Return each fact's distinct values in the group's runs, sorted; facts that are null everywhere are left out."""
    found: dict[str, dict[str, None]] = {}
    for run in side.runs:
        for part in ("software", "options", "machine"):
            for name, value in _flat(run.manifest.get(part, {}), part):
                values = found.setdefault(name, {})
                if value is not None:
                    values[value] = None
    return {name: sorted(values) for name, values in found.items() if values}


def _flat(facts: Any, name: str) -> Iterator[tuple[str, str | None]]:
    """Yield nested facts as one list, with names joined by dots."""
    if name == _ARGUMENTS:
        yield f"{name} (number)", str(len(facts))
    elif isinstance(facts, Mapping):
        for key, value in facts.items():
            yield from _flat(value, f"{name}.{key}")
    elif isinstance(facts, list) and any(isinstance(each, Mapping) for each in facts):
        for number, each in enumerate(facts):
            yield from _flat(each, f"{name}.{number}")
    elif isinstance(facts, bool):
        yield name, "yes" if facts else "no"
    elif isinstance(facts, list):
        yield name, ", ".join(map(str, facts)) or None
    else:
        yield name, None if facts is None else str(facts)
