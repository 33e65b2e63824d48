"""The summary of a run as data, for programs: `charact show --json`. `docs/show.md` documents the keys."""

import json
from collections import defaultdict
from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import pass_reason, passes_taken
from charact.analysis.efficiency.counters import counter_sources, missing_counters
from charact.analysis.efficiency.utilization import energy_reason
from charact.analysis.findings import findings, program_time
from charact.analysis.profile.case_summary import case_summary
from charact.record.presentable import presentable, redacted
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, by_kind
from charact.views.tables import format as fmt

KEYS_VERSION = 1
"""Version of the keys: it changes if a key is renamed or removed, not if one is added."""
NUM_ROWS = 10
"""Largest number of rows of a table of a case, such as its operators."""
_FACTS = (
    "case", "kind", "workload", "variant", "input_size", "output_size", "batch_size", "mode", "precision", "cache",
    "attention", "lora_rank", "device", "device_name", "num_parameters", "num_trainable_parameters", "status", "reason",
)  # fmt: skip
_PASSES = ("timing", "operators", "memory", "flop", "counters")
"""Passes of a profiled case; the reason is given for each that was not taken."""
_COUNTS = ("batch_size", "lora_rank", "input_size", "output_size", "epoch", "line", "number", "value")

Data = dict[str, Any]
"""A JSON object."""


def run_summary(run: Run) -> Data:
    """Return the summary of a run: what ran, on what machine, and for each case the keys of `docs/show.md`.

    Numbers are in base units. A number that was not measured is null.
    """
    run = shareable(run)
    return run_facts(run) | {"findings": finding_facts(run), "program_time": program_time(run).to_dict("records"),
                             "cases": _cases(run)}


def finding_facts(run: Run) -> list[Data]:
    """Return the findings about a watched program, ranked; see `charact.analysis.findings.findings`."""
    return [{str(key): value if isinstance(value, list) else _value(str(key), value) for key, value in row.items()}
            for row in findings(run).to_dict("records")]


def shareable(run: Run) -> Run:
    """Return the record without secrets and control characters."""
    return presentable(redacted(run))


def run_facts(run: Run) -> Data:
    """Return the summary of a run without its cases."""
    manifest, machine = run.manifest, run.manifest.get("machine", {})
    return {
        "keys_version": KEYS_VERSION,
        "run": {"id": run.run_id, "path": str(run.path),
                **{key: manifest.get(key) for key in ("name", "status", "started", "ended", "ending")},
                "command": " ".join(manifest.get("command_line", [])) or None, "num_cases": len(manifest["cases"])},
        "machine": {"hostname": machine.get("hostname"), "os": machine.get("os"),
                    "cpu": machine.get("cpu", {}).get("model"),
                    "num_usable_cores": machine.get("cpu", {}).get("num_usable_cores"),
                    "memory_bytes": machine.get("memory_bytes"),
                    "gpus": [gpu.get("name") for gpu in machine.get("gpus", [])],
                    "no_gpu_reason": machine.get("no_gpu_reason")},
        "software": {key: manifest.get("software", {}).get(key) for key in ("charact", "python", "torch", "cuda")},
    }  # fmt: skip


def _cases(run: Run) -> list[Data]:
    """Return the cases of a run in their order, each with the parts of its kind."""
    cases = case_summary(run)
    described: dict[str, Data] = {}
    lacking = not_measured(run)
    for kind, rows in by_kind(cases):
        reasons, warnings = _of_overview(run, kind, rows)
        parts = {key: (part, dict(iter(part.rows(run).groupby("case", sort=False))))
                 for key, part in _parts_of(kind, run).items()}
        for row in rows.to_dict("records"):
            name = row["case"]
            data: Data = {key: _value(key, row[key]) for key in _FACTS}
            data |= {"warnings": warnings.get(name, []), "left_out": {}}
            for key, (part, by_case) in parts.items():
                data[key] = _part(part, by_case.get(name))
                if name in by_case and len(by_case[name]) > len(data[key]) and part.is_list:
                    data["left_out"][key] = len(by_case[name]) - len(data[key])
            headline = data["headline"]
            if headline is not None:
                headline["reasons"] = {key: reason for key, reason in reasons[name].items()
                                       if key in headline and headline[key] is None}
            data["not_measured"] = lacking[name]
            described[name] = data
    return [described[str(case)] for case in cases["case"]]


def lines_of(data: Any) -> list[str]:
    """Return JSON with an object or a list of plain values on one line each, so that a person can read it."""
    if not isinstance(data, dict | list) or not any(isinstance(value, dict | list) for value in
                                                    (data.values() if isinstance(data, dict) else data)):
        return [json.dumps(data, allow_nan=False)]
    items = [(f"{json.dumps(key)}: ", value) for key, value in data.items()] if isinstance(data, dict) else \
        [("", value) for value in data]
    lines = []
    for number, (key, value) in enumerate(items):
        inner = lines_of(value)
        inner[0] = f"{key}{inner[0]}"
        inner[-1] += "," if number < len(items) - 1 else ""
        lines += [f" {line}" for line in inner]
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    return [opening, *lines, closing]


def _parts_of(kind: CaseKind, run: Run) -> dict[str, CasePart]:
    """Return the parts of a kind's cases; by default, the headline is the row of the kind's table across runs."""
    if "headline" in kind.parts:
        return dict(kind.parts)
    columns = tuple(str(column) for column in kind.rows(run) if column not in _FACTS)
    return {"headline": CasePart(kind.rows, columns, is_list=False)} | dict(kind.parts)


def _part(part: CasePart, rows: pd.DataFrame | None) -> Any:
    """Return the rows of a part as objects: a list, or one object or null."""
    if rows is None:
        return [] if part.is_list else None
    first = rows[list(part.columns)].head(len(rows) if part.whole else NUM_ROWS)
    objects = [{str(key): _value(str(key), value) for key, value in row.items()} for row in first.to_dict("records")]
    return objects if part.is_list else objects[0]


def _value(key: str, value: Any) -> Any:
    """Return a value for JSON: null for missing ones, whole numbers for counts."""
    if pd.isna(value):
        return None
    value = value.item() if hasattr(value, "item") else value
    is_count = key.startswith("num_") or key.endswith(("bytes", "flop", *_COUNTS))
    return int(value) if is_count and isinstance(value, float) and value.is_integer() else value


def _of_overview(run: Run, kind: CaseKind, rows: pd.DataFrame
                 ) -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    """Return why headline numbers are missing, by case and key, and each case's warnings: those of the report."""
    overview = kind.overview(run, rows)
    table = overview.table
    if not any(row.case for row in table.rows):  # totals of suites, not cases
        table = kind.tables(kind.rows(run).assign(run=run.run_id, position=0))[-1]
    reasons: dict[str, dict[str, str]] = defaultdict(dict)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.sort is None and (reason := fmt.reason_of(cell.text)):
                reasons[str(row.case)][column.name] = reason
    return reasons, {card.case: [" ".join(card.warnings)] for card in overview.cards if card.warnings}


def not_measured(run: Run) -> dict[str, list[Data]]:
    """Return what was not measured and why, by case."""
    cases = case_summary(run)
    by_case: dict[str, dict[str, str]] = {}
    for case, kind in zip(cases["case"].astype(str), cases["kind"], strict=True):
        names = dict.fromkeys([*run.entry(case).passes, *(_PASSES if kind == "profile" else ())])
        by_case[case] = {f"{name} pass": reason for name in names if (reason := pass_reason(run, case, name))}
    for row in fmt.rows(counter_sources(run).query("status != 'ok'")):
        by_case[row.case][f"counters of {row.source}"] = str(row.reason)
    for keys, rows in missing_counters(run).groupby(["case", "source", "reason"], sort=False):
        case, source, reason = (str(key) for key in keys)
        by_case[case][f"{', '.join(rows['counter'])} of {source}"] = reason
    why = energy_reason(run) if "counters" in passes_taken(run) else None
    return {case: [{"what": what, "reason": reason}
                   for what, reason in (reasons if why is None else reasons | {"energy": why}).items()]
            for case, reasons in by_case.items()}
