"""Runs of one case at several times, written to disk or only in an index."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from charact.analysis.history.index import CaseFacts, Index, Number, RunFacts
from charact.record.in_progress import write_manifest
from support import records

CASE = "resnet50-32-b8-infer-fp32-cpu"


def run_at(out: Path, time: str, **software: Any) -> Path:
    path = records.write_record(out, sizes=(32,), modes=("infer",))
    manifest = json.loads((path / "run.json").read_text(encoding="utf-8"))
    write_manifest(path, manifest | {"started": time, "software": manifest["software"] | software})
    return path


def synthetic_index(values: Any) -> Index:
    """An index of runs with these times, one an hour."""
    noise = np.random.default_rng(0).normal(1, 0.002, len(values))
    runs = {
        f"/runs/{number:03}": RunFacts(
            f"run-{number:03}", (1, 1), f"2026-11-{1 + number // 24:02}T{number % 24:02}:00:00+0000",
            f"{number:03x}{37 * '0'}", False, "EPYC on here", "2.13.0", None, {CASE: CaseFacts("ok", None, {
                "time": Number(value, 0.99 * value, 1.01 * value, None)})})
        for number, value in enumerate((np.asarray(values) * noise).tolist())
    }
    return Index(runs, {}, {}, None)
