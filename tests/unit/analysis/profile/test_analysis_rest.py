"""Memory, passes, and what every analysis makes of a record that lacks things."""

from pathlib import Path
from typing import Any

import pytest
from support import records
from support.compared import record as record_of
from support.traces import TraceMaker, training

from charact.analysis.common.machine_names import machine_name
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
from charact.analysis.profile.iteration_timeline import IterationTimeline, iteration_timeline
from charact.core.errors import UserError
from charact.record.in_progress import trace_name
from charact.record.reader import Run, load_run
from charact.record.schema import MEMORY_CATEGORIES
from charact.views.tables import format as fmt

TRAIN = "resnet50-224-b8-train-fp32-cpu"
def test_memory_composition_sums_to_the_peak(record: Path, tmp_path: Path) -> None:
    held = memory_composition(load_run(record)).query("case == @TRAIN")
    of_ranks_or_newer = ("unsharded_weights", "communication_buffers", "workspaces", "kv_cache")
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
    ({}, {"passes": {"memory": {"status": "ok"}}}, {}, "not measured"),
    ({}, {}, {"script": "a.py"}, "not asked for: charact run --passes memory"),
    ({}, {}, {"script": "a.py", "iterations": 9}, "--iterations alone measures times: add --passes operators,memory"),
    ({}, {}, {"script": "a.py", "iterations": 9, "passes": ["counters"]}, "not asked for: charact run --passes memory"),
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
    assert missed == MissedPrecision(target_frac=0.02, ended_by="max_seconds")
    assert fmt.missed_precision(missed) == ("Less precise than the target of ± 2.0 %: time limit; "
                                            "try a longer --max-seconds")
    assert missed_precision(run, met["case"]) is None


@pytest.mark.parametrize(("machine", "devices", "name"), [
    ({"hostname": "h", "cpu": {"model": "C", "num_usable_cores": 1}}, ["C"], "C, 1 core on h"),
    ({"cpu": {"model": "C", "num_usable_cores": 2}, "gpus": [{"name": "G"}]}, ["C", "D", "C", None], "C, 2 cores + D"),
    ({"cpu": {"model": "C"}}, ["C"], "C"), ({"cpu": {"model": "C"}, "hostname": "h"}, [None], "C on h"),
    ({"cpu": {"model": "C"}, "gpus": [{"name": "G"}, {"name": ""}, {"name": "H"}]}, [], "G + H"),
    ({"hostname": "h"}, [], "h"), ({}, [], None)])
def test_the_name_of_a_machine(machine: dict[str, Any], devices: list[str | None], name: str | None) -> None:
    entries = [records.case_entry("r", 32, "infer") | {"device_name": device} for device in devices]
    assert machine_name(Run(Path("none"), {"cases": entries, "machine": machine})) == name


def timeline_of(directory: Path, trace: TraceMaker, least_frac: float = 0.0) -> IterationTimeline:
    (directory / "trace").mkdir()
    trace.write(directory / "trace" / trace_name("a"))
    return iteration_timeline(Run(directory, {"cases": []}), "a", least_frac)


def test_the_timeline_of_the_last_iteration(tmp_path: Path) -> None:
    found = timeline_of(tmp_path, training())
    # In µs: kernels of the third iteration run from 900 after its start on; the last one ends at 2,100.
    assert (found.length_s, found.num_left_out, found.num_other_tracks) == (pytest.approx(0.0021), 0, 0)
    spans = found.spans.assign(start=found.spans["start_s"] * 1e6, length=found.spans["length_s"] * 1e6)
    assert spans[spans["track"] == "phases"][["kind", "start", "length"]].to_numpy().tolist() == [
        [name, pytest.approx(start), pytest.approx(length)] for name, start, length in (
            ("data", 0, 100), ("forward", 100, 300), ("loss", 400, 50), ("backward", 450, 350), ("update", 800, 100))]
    others = spans[spans["track"] != "phases"]
    assert others.groupby("track", sort=False).size().to_dict() == {
        "main thread": 3, "process 1, thread 200": 4, "device 0, stream 7": 4, "device 0, stream 9": 1}
    rows = others.set_index("name")[["depth", "start", "length", "layer", "kind"]]
    assert rows.loc["aten::mm"].tolist() == [1, pytest.approx(460), pytest.approx(200), "Linear_0", "GEMM"]
    assert rows.loc["gemm_grad"].tolist() == [0, pytest.approx(1220), pytest.approx(500), "Linear_0", "GEMM"]
    assert set(rows.loc[rows["depth"] == 1].index) == {"aten::mm", "nccl:all_reduce"}


def test_a_timeline_leaves_out_what_is_short_or_deep_and_threads_with_few_operators(tmp_path: Path) -> None:
    trace = TraceMaker()
    trace.mark("ProfilerStep#1", 0, 1000)
    for depth in range(22):
        trace.operator("aten::mm", depth, 1000 - 2 * depth)
    for thread in range(301, 319):
        for number in range(1 if thread > 316 else 2):
            trace.operator("aten::mm", 10 * number, 10 - number, thread)
    trace.operator("aten::mm", 1000, 10)  # after the end
    found = timeline_of(tmp_path, trace, 0.01)
    spans = found.spans[found.spans["track"] != "phases"]
    assert spans.loc[spans["track"] == "main thread", "depth"].tolist() == list(range(20))
    assert spans["track"].nunique() == 16
    assert found.num_other_tracks == 3
    assert found.num_left_out == 2 + 15  # the second operator of a thread takes 9 of 1,000 µs
    assert spans["length_s"].min() == pytest.approx(1e-5)


def test_a_case_without_a_timeline(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trace of this case"):
        iteration_timeline(Run(tmp_path, {"cases": []}), "a", 0.0)
    trace = TraceMaker()
    trace.operator("aten::mm", 0, 0)
    with pytest.raises(UserError, match="no events with a duration"):
        timeline_of(tmp_path, trace)
