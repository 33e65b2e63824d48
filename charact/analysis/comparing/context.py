"""What else differs between two sides: versions, options, facts of the machine, clocks."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from charact.analysis.comparing.composition import Repeats, case_repeats
from charact.analysis.comparing.sides import Side
from charact.analysis.counters import counter_values

_ARGUMENTS = "options.arguments"
_DERIVED = {"machine.fingerprint"}
_CLOCKS = r"_hz$|^throttled_frac$"
_CHANGE_FRAC = 0.01


def context_changes(base: Side, new: Side) -> pd.DataFrame:
    """Facts about machine, software and options that differ between two sides.

    Of arguments only how many there are is compared: they may hold what is not to be shown.

    Columns: fact, such as `software.torch`; base and new, what it is there, of several runs each value once; null where
    no run of the side tells.
    """
    facts = [_facts(side) for side in (base, new)]
    names = dict.fromkeys(name for told in facts for name in told)
    rows = [[name, *(told.get(name) for told in facts)] for name in names if name not in _DERIVED]
    return pd.DataFrame([row for row in rows if row[1] != row[2]], columns=["fact", "base", "new"], dtype="str")


def clock_changes(base: Side, new: Side, case: str) -> pd.DataFrame:
    """Clocks that ran at another rate while a matched case's counters were read, by more than 1 %.

    Columns: counter; source; base and new, in the unit of the counter's name, means over devices and runs.
    """
    sides = [_clocks(repeats) for repeats in case_repeats([base, new], case)]
    rows = pd.concat(sides, axis="columns", keys=["base", "new"], join="inner").reset_index()
    changed = (rows["new"] - rows["base"]).abs() > _CHANGE_FRAC * rows[["base", "new"]].max(axis="columns")
    return rows.loc[changed, ["counter", "source", "base", "new"]].reset_index(drop=True)


def _clocks(repeats: Repeats) -> "pd.Series[float]":
    read = [counter_values(run).query("case == @name") for run, name in repeats]
    rows = pd.concat([pd.DataFrame(columns=["counter", "source", "value"]), *read])
    clocks = rows[rows["counter"].str.contains(_CLOCKS).astype(bool)]
    return clocks.groupby(["counter", "source"])["value"].mean()


def _facts(side: Side) -> dict[str, str]:
    """Each fact's values in the side's runs, each once, in order; facts that are null everywhere are left out."""
    found: dict[str, list[str]] = {}
    for run in side.runs:
        for part in ("software", "options", "machine"):
            for name, value in _flat(run.manifest.get(part, {}), part):
                values = found.setdefault(name, [])
                if value is not None and value not in values:
                    values.append(value)
    return {name: "; ".join(sorted(values)) for name, values in found.items() if values}


def _flat(facts: Any, name: str) -> Iterator[tuple[str, str | None]]:
    """Nested facts as one list, names joined by dots."""
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
