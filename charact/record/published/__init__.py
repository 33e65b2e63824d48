"""Published tables as run records.

Each JSON file has one machine's figures. A case has the same coordinates as `charact train` with the study's protocol
gives it, so that it matches the user's own record. A published number has no interval.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.record.manifest import COORDINATES
from charact.record.reader import Run
from charact.record.schema import SCHEMA_VERSION, TABLES, Rows
from charact.record.tables import frame_of

PREFIX = "reference:"
"""Prefix of a reference's name, used in place of a run's directory."""


def reference_names() -> list[str]:
    """Return the names of the published tables, in alphabetical order."""
    return sorted(file.name.removesuffix(".json") for file in files(__name__).iterdir() if file.name.endswith(".json"))


def published_table(name: str) -> dict[str, Any]:
    """Return a published table as in its file: source, gpu and cases."""
    if name not in reference_names():
        raise UserError(f"there is no reference '{name}': choose from {', '.join(reference_names())}")
    table: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    return table


def reference(name: str) -> Run:
    """Return a published table as a run.

    Its manifest has `reference`: source, what is unstated, and notes. A training has one stage with the number of the
    last epoch, which covers all epochs; its time is in the phase `other`, because none was published by phase.
    """
    published = published_table(name)
    entries: list[dict[str, Any]] = []
    rows: dict[str, Rows] = {table: [] for table in TABLES}
    for case in published["cases"]:
        facts, of_case = _operation(case) if "operation" in case else _of_workload(case, published)
        entries.append(COORDINATES | {"status": "ok", "source": published["source"]} | facts)
        for table, some in of_case.items():
            rows[table] += [{"case": facts["case"], **row} for row in some]
    manifest = {
        "schema_version": SCHEMA_VERSION, "run_id": name, "name": name, "status": "complete", "cases": entries,
        "machine": {"gpus": [{"name": published["gpu"]}]}, "software": {}, "options": {}, "command_line": [],
        "tables": [table for table, some in rows.items() if some],
        "reference": {fact: published[fact] for fact in ("source", "unstated", "notes")},
    }
    frames = {table: frame_of(table, some) for table, some in rows.items()}
    return Run(Path(f"{PREFIX}{name}"), manifest, _tables=frames)


def _of_workload(case: dict[str, Any], published: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return the manifest entry and the rows of a training or an inference.

    Of an inference, load and prediction were published as one number.
    """
    data = f"-{case['data']}" if case["data"] else ""
    names = ("workload", "variant", "mode", "precision", "input_size", "batch_size", "data")
    entry = {name: case[name] for name in names} | {
        "case": f"{case['workload']}{data}-{case['input_size']}-b{case['batch_size']}-{case['mode']}-"
                f"{case['precision']}-cuda",
        "input_kind": "image", "device": "cuda", "device_name": published["gpu"]}
    if case["mode"] == "infer":
        return entry | {"passes": {"inference": {
            "status": "ok", "cold_reason": "published as one number with the prediction",
            "total_s": case["total_s"]}}}, {}
    num_epochs, accuracy = case["num_epochs"], case.get("accuracy")
    training = {
        "status": "ok", "num_epochs_asked": num_epochs, "num_epochs": num_epochs,
        "best": None if accuracy is None else {"metric": "accuracy", "value": accuracy, "epoch": num_epochs},
        "protocol": {"name": published["protocol"], "source": published["source"], "changed": {},
                     "unstated": published["unstated"]}}
    metrics = [] if accuracy is None else [
        {"stage": "validation", "number": num_epochs, "metric": "accuracy", "value": accuracy}]
    total = {"stage": "training", "number": num_epochs, "phase": "other", "host_s": case["total_s"]}
    return entry | {"passes": {"training": training}}, {"stages": [total], "metrics": metrics}


def _operation(case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return the problems of a set as one problem, timed once, because only the sum of their times was published."""
    problem = f"vo:{case['set']} ({case['num_problems']} problems)"
    entry = {"case": f"vo-{case['set']}-{case['precision']}-cpu", "workload": problem, "variant": "vo", "mode": "op",
             "precision": case["precision"], "device": case["device"], "passes": {"ops": {"status": "ok"}}}
    return entry, {
        "problems": [{"operation": case["operation"], "problem": problem, "suite": "vo", "set": case["set"],
                      "direction": "forward", "flop": case["flop"], "published_flop": case["flop"]}],
        "repetitions": [{"direction": "forward", "repetition": 0, "num_calls": 1, "host_s": case["total_s"]}]}
