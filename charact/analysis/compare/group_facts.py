"""Description of each group in a comparison, and differences of versions, options, machines and clocks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.machine_names import machine_name
from charact.analysis.compare.matching import Group
from charact.analysis.compare.operator_shares import compositions
from charact.analysis.profile.core_use import disturbance

_ARGUMENTS = "options.arguments"
_DERIVED = {"machine.fingerprint"}
_NUMBER = re.compile(r"-?[0-9][0-9.,e-]*")
_CHANGE_FRAC = 0.01
_MOST_VALUES = 8


def side_facts(sides: Sequence[Group]) -> pd.DataFrame:
    """Return one row for each group.

    Columns: side; machine, its devices and host name, null if not recorded; num_runs; num_cases, with different names;
    torch, the versions of PyTorch, null if not recorded; origin, the run's identifier, the number of runs, or the
    source of a published table.
    """
    rows = []
    for side in sides:
        first, num_runs = side.runs[0], len(side.runs)
        origin = "published table" if "reference" in first.manifest else first.run_id
        if num_runs > 1:
            origin = f"{num_runs} runs, {min(run.run_id for run in side.runs)} and later"
        versions = (run.manifest.get("software", {}).get("torch") for run in side.runs)
        num_cases = len({entry.case for run in side.runs for entry in run.entries})
        rows.append([side.label, _joined(map(machine_name, side.runs)), num_runs, num_cases, _joined(versions), origin])
    return pd.DataFrame(rows, columns=["side", "machine", "num_runs", "num_cases", "torch", "origin"])


def failed_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return cases that did not end well, matched or not. Columns: side; case; status; reason."""
    rows = [[side.label, entry.case, entry.status, entry.reason]
            for side in sides for run in side.runs for entry in run.entries if entry.status != "ok"]
    return pd.DataFrame(rows, columns=["side", "case", "status", "reason"])


def disturbed_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the runs of cases that other programs disturbed, see `core_use`.

    Columns: side; case; run; disturbance, the cores that other programs held, as text; lost_frac, as in `core_use`.
    """
    rows = [[side.label, entry.case, run.run_id, str(others), others.lost_frac]
            for side in sides for run in side.runs for entry in run.entries
            if (others := disturbance(run, entry.case)) is not None]
    return pd.DataFrame(rows, columns=["side", "case", "run", "disturbance", "lost_frac"])


def disturbed_by_case(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the disturbed cases of each group: columns side, case, num_runs and disturbance, of the worst run."""
    rows = disturbed_cases(sides).sort_values("lost_frac", ascending=False, kind="stable")
    return rows.groupby(["side", "case"], sort=False, as_index=False).agg(
        num_runs=("run", "size"), disturbance=("disturbance", "first"))


def published_notes(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the notes of groups that are published tables. Columns: side; note."""
    rows = []
    for side in sides:
        for published in (run.manifest["reference"] for run in side.runs if "reference" in run.manifest):
            rows.append([side.label, ". ".join([f"Source: {published['source']}",
                                                f"Not stated there: {published['unstated']}", *published["notes"]])])
    return pd.DataFrame(rows, columns=["side", "note"])


def listed(values: Sequence[str]) -> str:
    """Return the first few values as text, with the number of the others."""
    more = len(values) - _MOST_VALUES
    return "; ".join([*values[:_MOST_VALUES], f"{more:,} more"] if more > 0 else values)


def _joined(names: Iterable[str | None]) -> str | None:
    return listed(list(dict.fromkeys(name for name in names if name))) or None


def context_changes(base: Group, new: Group) -> pd.DataFrame:
    """Return facts about machine, software and options that differ between two groups.

    Of command-line arguments, names of options and numbers are kept; other values may be private, and are `…`.

    Columns: fact, such as `software.torch`; base and new, the distinct values over the group's runs; null if no run of
    the group has the fact.
    """
    before, after = _facts(base), _facts(new)
    rows = [[name, *(listed(values.get(name, [])) or None for values in (before, after))]
            for name in dict.fromkeys([*before, *after])
            if name not in _DERIVED and before.get(name) != after.get(name)]
    return pd.DataFrame(rows, columns=["fact", "base", "new"], dtype="str")


def clock_changes(base: Group, new: Group, case: str) -> pd.DataFrame:
    """Return clocks of a matched case that differ by more than 1 % between two groups while counters were read.

    Columns: counter; source; base and new, in the unit of the counter's name, means over devices and runs.
    """
    of_side = compositions([base, new], {case}).get(case, {})
    if len(of_side) < 2:
        return pd.DataFrame(columns=["counter", "source", "base", "new"])
    clocks = [of_side[side.label].clocks for side in (base, new)]
    rows = pd.concat(clocks, axis="columns", keys=["base", "new"], join="inner").reset_index()
    changed = (rows["new"] - rows["base"]).abs() > _CHANGE_FRAC * rows[["base", "new"]].max(axis="columns")
    return rows.loc[changed, ["counter", "source", "base", "new"]].reset_index(drop=True)


def _facts(side: Group) -> dict[str, list[str]]:
    """Return each fact's distinct values in the group's runs, sorted; facts that are null everywhere are left out."""
    facts: dict[str, set[str]] = {}
    for run in side.runs:
        for part in ("software", "options", "machine"):
            for name, value in _flat(run.manifest.get(part, {}), part):
                if value is not None:
                    facts.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in facts.items()}


def _public(argument: str) -> str:
    """Return an argument of a command line without a value that may be private."""
    option, is_assigned, value = argument.partition("=")
    if not option.startswith("-") or _NUMBER.fullmatch(argument):
        return argument if _NUMBER.fullmatch(argument) else "…"
    return f"{option}={value if _NUMBER.fullmatch(value) else '…'}" if is_assigned else option


def _flat(facts: Any, name: str) -> Iterator[tuple[str, str | None]]:
    if name == _ARGUMENTS:
        yield name, " ".join(map(_public, facts)) or "none"
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
