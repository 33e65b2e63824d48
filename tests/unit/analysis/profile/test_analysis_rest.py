"""Memory, passes, and what every analysis makes of a record that lacks things."""

from pathlib import Path
from typing import Any

import pytest
from support import records
from support.compared import record as record_of

from charact.analysis.common.pass_status import (
    MissedPrecision,
    missed_precision,
    pass_outcomes,
    pass_reason,
    passes_taken,
    stop_rules,
    was_asked_for,
)
from charact.analysis.memory.by_input_size import memory_by_size
from charact.analysis.memory.composition import memory_by_phase, memory_composition
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import load_run
from charact.record.schema import MEMORY_CATEGORIES
from charact.views.tables import format as fmt

TRAIN = "resnet50-224-b8-train-fp32-cpu"
def test_memory_composition_sums_to_the_peak(record: Path, tmp_path: Path) -> None:
    held = memory_composition(load_run(record)).query("case == @TRAIN")
    of_ranks_or_newer = ("unsharded_weights", "communication_buffers", "workspaces")
    assert held["category"].tolist() == [name for name in MEMORY_CATEGORIES if name not in of_ranks_or_newer]
    by_category = held.set_index("category")
    assert by_category.loc["activations", "bytes"] == 1e3 * 224**2
    peak = 3 * 1.02e8 + 1e3 * 224**2 + 1e6 + 4 * 8 * 3 * 224**2
    assert by_category.loc["weights", "share_frac"] == pytest.approx(1.02e8 / peak)
    assert held["share_frac"].sum() == pytest.approx(1)
    assert set(held["phase"]) == {"backward"}
    held = memory_by_phase(load_run(record)).query("case == @TRAIN")
    assert held["phase"].unique().tolist() == ["forward", "backward"]
    assert held.groupby("phase")["share_frac"].sum().tolist() == pytest.approx([1, 1])
    run = load_run(records.write_record(tmp_path, sizes=(224, 32, 64), modes=("train",)))
    rows = memory_by_size(run).query("category == 'activations'")
    assert rows["input_size"].tolist() == [32, 64, 224]
    assert rows["bytes"].tolist() == [1e3 * size**2 for size in (32, 64, 224)]


def test_reasons_and_stop_rules_come_from_the_manifest(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path, sizes=(224,), oom=True))
    assert pass_reason(run, TRAIN, "timing") is None
    assert pass_reason(run, TRAIN, "kernels") == "no CUDA device: kernels run on GPUs only"
    assert pass_reason(run, TRAIN, "counters") == "not measured"
    assert pass_reason(run, "resnet50-4096-b8-train-fp32-cpu", "memory") == "out of memory: asked for 64.0 GB"
    outcomes = pass_outcomes(run).query("case == @TRAIN").set_index("pass")
    assert outcomes["status"].to_dict() == {
        "timing": "ok", "operators": "ok", "kernels": "skipped", "memory": "ok", "flop": "ok",
    }  # fmt: skip
    rules = stop_rules(load_run(records.write_record(tmp_path, sizes=(224,), oom=True))).set_index("case")
    assert rules.loc[TRAIN, ["num_warmup_iterations", "num_iterations", "ended_by"]].tolist() == [3, 10, "precision"]
    assert rules.loc[TRAIN, "overhead_ratio"] == 1.04
    assert rules.loc["resnet50-4096-b8-train-fp32-cpu"].isna().all()


@pytest.mark.parametrize(("first", "second", "options", "reason"), [
    ({}, {}, {}, "not measured"),
    ({"reason": "killed"}, {}, {}, "killed"),
    ({"passes": {"memory": {"status": "ok"}}}, {}, {}, None),
    ({"passes": {"memory": {"status": "failed", "reason": "busy"}}}, {}, {}, "busy"),
    ({"passes": {"memory": {"status": "skipped"}}}, {}, {}, "pass skipped"),
    ({}, {"passes": {"memory": {"status": "ok"}}}, {}, "not measured"), ({}, {}, {"script": "a.py"}, "not measured"),
    ({}, {"passes": {"memory": {"status": "ok"}}}, {"script": "a.py"}, "taken over second only"),
    ({}, {"passes": {"memory": {"status": "failed", "reason": "busy"}}}, {"script": "a.py"}, "busy"),
])
def test_why_a_case_has_no_data_of_a_pass(tmp_path: Path, first: dict[str, Any], second: dict[str, Any],
                                          options: dict[str, Any], reason: str | None) -> None:
    entries = ({"case": name, "status": "ok", "passes": {}, **facts} for name, facts in
               (("first", first), ("second", second)))
    run = record_of(tmp_path, *entries, options=options)
    assert pass_reason(run, "first", "memory") == reason
    taken = {"memory"} if "passes" in first | second else set()
    assert passes_taken(run) == taken
    assert was_asked_for(run, "memory")
    assert was_asked_for(run, "flop") == (not taken)


def test_a_case_without_its_tables_keeps_its_row(record: Path) -> None:
    for table in records.PROFILE_TABLES:
        if (record / f"{table}.parquet").exists():
            records.drop_table(record, table)
    summary = case_summary(load_run(record))
    assert len(summary) == 4
    assert summary[["median_s", "flop", "peak_bytes"]].isna().all(axis=None)


def test_a_case_that_missed_its_precision_says_so(tmp_path: Path) -> None:
    entry = records.case_entry("r", 32, "train")
    entry["passes"]["timing"] |= {"interval_frac": 0.148, "ended_by": "max_seconds"}
    met = records.case_entry("r", 64, "train")
    run = records.run_of(tmp_path, (entry, records.case_tables("train", 32)), (met, records.case_tables("train", 64)))
    missed = missed_precision(run, entry["case"])
    assert missed == MissedPrecision(interval_frac=0.148, target_frac=0.02, ended_by="max_seconds")
    assert fmt.missed_precision(missed) == "± 14.8 %, above the target of 2.0 %: time limit; try a longer --max-seconds"
    assert missed_precision(run, met["case"]) is None
