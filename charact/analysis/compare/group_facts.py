"""Description of each group in a comparison, and differences of versions, options, machines and clocks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.machine_names import machine_name
from charact.analysis.compare.matching import Group
from charact.analysis.compare.operator_shares import compositions
from charact.analysis.profile.core_use import disturbance


def side_facts(sides: Sequence[Group]) -> pd.DataFrame:
    """Return one row for each group.

    Columns: side; machine, its devices and host name, null if not recorded; num_runs; num_cases, with different names;
    torch, the versions of PyTorch, null if not recorded; origin, the run's identifier, the number of runs, or the
    source of a published table.
    """
    rows = [
        [side.label, _joined(machine_name(run) for run in side.runs), len(side.runs),
         len({entry["case"] for run in side.runs for entry in run.manifest["cases"]}),
         _joined(run.manifest.get("software", {}).get("torch") for run in side.runs), _origin(side)]
        for side in sides
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "machine", "num_runs", "num_cases", "torch", "origin"])


def failed_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return cases that did not end well, matched or not. Columns: side; case; status; reason."""
    rows = [
        [side.label, entry["case"], entry["status"], entry.get("reason")]
        for side in sides for run in side.runs for entry in run.manifest["cases"] if entry["status"] != "ok"
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "case", "status", "reason"])


def disturbed_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return cases that other programs disturbed, see `core_use`.

    Columns: side; case; run; disturbance, the cores that other programs held, as text.
    """
    rows = [
        [side.label, entry["case"], run.run_id, str(found)]
        for side in sides for run in side.runs for entry in run.manifest["cases"]
        if (found := disturbance(run, entry["case"])) is not None
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "case", "run", "disturbance"])


def published_notes(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the notes of groups that are published tables. Columns: side; note."""
    rows = [[side.label, _note(run.manifest["reference"])]
            for side in sides for run in side.runs if "reference" in run.manifest]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "note"])


def _note(published: dict[str, Any]) -> str:
    return ". ".join([f"Source: {published['source']}", f"Not stated there: {published['unstated']}",
                      *published["notes"]])  # fmt: skip


def _origin(side: Group) -> str:
    first = side.runs[0]
    if len(side.runs) > 1:
        return f"{len(side.runs)} runs, {min(run.run_id for run in side.runs)} and later"
    return "published table" if "reference" in first.manifest else first.run_id


def _joined(names: Any) -> str | None:
    return listed(list(dict.fromkeys(name for name in names if name))) or None


_ARGUMENTS = "options.arguments"
_DERIVED = {"machine.fingerprint"}
_CHANGE_FRAC = 0.01


_MOST_VALUES = 8


def listed(values: Sequence[str]) -> str:
    """Return the first few values as text, with the number of the others."""
    more = len(values) - _MOST_VALUES
    return "; ".join([*values[:_MOST_VALUES], f"{more:,} more"] if more > 0 else values)


def context_changes(base: Group, new: Group) -> pd.DataFrame:
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


def clock_changes(base: Group, new: Group, case: str) -> pd.DataFrame:
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


def _facts(side: Group) -> dict[str, list[str]]:
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
