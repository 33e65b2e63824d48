"""Throughput, memory, accuracy, energy and totals of sides, of records made by hand."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.compared import record, scattered, side
from support.operation_records import vo
from support.records import case_entry, case_tables, manifest, run_of, write_inference, write_training

from charact.analysis.common.significance import ONE_VALUE, Sample
from charact.analysis.compare import Group, metric_ratios, speedups
from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.metrics.accuracy import _proportion
from charact.analysis.compare.samples import PUBLISHED, rate, time_samples
from charact.analysis.efficiency import flop_utilization
from charact.machine.datasheets import Datasheet
from charact.record.in_progress import write_manifest
from charact.record.reader import Run, load_run


def edited(path: Path, change: Any) -> Run:
    """A run whose manifest was changed after it was written."""
    described = json.loads((path / "run.json").read_text())
    change(described)
    write_manifest(path, described)
    return load_run(path)


def test_of_a_profile(tmp_path: Path) -> None:
    sides = [side("base", scattered(tmp_path)), side("new", scattered(tmp_path, activations=1.5))]
    found = metric_ratios(sides).set_index("metric")
    assert found.index.to_list() == list(all_metrics())
    assert found["base"]["throughput"] == pytest.approx(8 / found["base"]["time"])
    memory = found.loc["peak_memory"]
    held = 1.02e8 * 3 + 1e6 + 4.0 * 8 * 3 * 32**2
    assert memory["base"] == pytest.approx(held + 1e3 * 32**2)
    assert memory["value"] == pytest.approx(held + 1.5e3 * 32**2)
    assert memory["significant"]
    assert memory["reason"] == "a count: no variation"
    assert found["reason"][["accuracy", "total_time", "inference_time", "energy"]].to_list() == ["not measured"] * 4
    run = scattered(tmp_path)
    run.manifest["cases"][0]["batch_size"] = None
    assert "throughput" not in set(metric_ratios([side("base", run), side("new", run)]).dropna(subset="base")["metric"])


def test_a_pass_that_gave_nothing_says_why(tmp_path: Path) -> None:
    entry = case_entry("vgg16", 32, "train")
    entry["passes"] |= {"memory": {"status": "failed", "reason": "RuntimeError: no"},
                        "counters": {"status": "skipped", "reason": "not asked for: --counters auto"}}  # fmt: skip
    run = record(tmp_path, entry)
    reasons = metric_ratios([side("base", run), side("new", run)]).set_index("metric")["reason"]
    assert reasons["peak_memory"] == "RuntimeError: no"
    assert reasons["energy"] == "not asked for: --counters auto"
    assert reasons["time"] == "not measured"


def test_a_rate_is_the_time_turned_over(base_and_new: list[Group]) -> None:
    found = metric_ratios(base_and_new).set_index("metric")
    time, rate = found.loc["time"], found.loc["throughput"]
    assert rate["ratio"] == pytest.approx(1 / time["ratio"])
    assert (rate["low"], rate["high"]) == (pytest.approx(1 / time["high"]), pytest.approx(1 / time["low"]))
    assert rate["p_value"] == pytest.approx(time["p_value"])


def test_rates_of_tokens_and_flop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flop_utilization, "datasheet", lambda name: Datasheet({"fp32": 1e13}, 1e9, "by hand"))
    entry, tables = case_entry("gpt", 32, "train"), case_tables("train", 32)
    entry["passes"]["timing"] |= {"num_tokens": 7_680, "num_padding": 2_560}
    entry["passes"]["flop"]["recomputed_flop"] = 6.5e10
    run = run_of(tmp_path, (entry, tables))
    found = metric_ratios([side("base", run), side("new", run)]).set_index("metric")
    time_s = found["base"]["time"]
    assert found["base"]["tokens_per_s"] == pytest.approx(768 / time_s)
    assert found["base"]["mfu"] == pytest.approx(1.3e11 / time_s / 1e13)
    assert found["base"]["hfu"] == pytest.approx(1.95e11 / time_s / 1e13)
    assert found["ratio"][["tokens_per_s", "mfu", "hfu"]].tolist() == [1, 1, 1]
    images = record(tmp_path, case_entry("vgg16", 32, "train"))
    other = metric_ratios([side("base", images), side("new", images)]).set_index("metric")
    assert other["reason"]["tokens_per_s"] == "not measured"


def test_rates_and_proportions_of_single_numbers(tmp_path: Path) -> None:
    per_second = rate(8.0, Sample(0.5, (0.25, 0.5), lambda: np.array([0.125, 0.5]), least=(0.25, 1.0)))
    assert (per_second.value, per_second.repeats, list(per_second.draws), per_second.least) == (
        16, (32, 16), [64, 16], (8, 32))
    per_second = rate(8.0, Sample(0.5, reason="once"))
    assert (per_second.value, per_second.reason) == (16, "once")
    # 8 of 10, with two successes and two failures more.
    error_frac = math.sqrt((10 / 14) * (4 / 14) / 14) / (10 / 14)
    assert _proportion(Run(tmp_path, {}), 0.8, 10).error_frac == pytest.approx(error_frac)
    assert [_proportion(Run(tmp_path, told), 0.8, None).reason for told in ({}, {"reference": "x"})] == [
        ONE_VALUE, PUBLISHED]


def test_of_a_training(tmp_path: Path) -> None:
    run = load_run(write_training(tmp_path, diverged=False))
    worse = edited(write_training(tmp_path, diverged=False), lambda told: [
        entry["passes"]["training"]["best"].update(value=0.92) for entry in told["cases"]])  # fmt: skip
    found = metric_ratios([side("base", run), side("new", worse)])
    first = found[found["case"] == found["case"][0]].set_index("metric")
    assert first["base"]["total_time"] == 62.5
    assert first["base"]["time"] == 12.5
    assert first["base"]["throughput"] == 800
    assert first["reason"]["total_time"] == "fewer than 6 epochs"
    # The logarithm of a share p of n samples has the variance (1 - p) / (p n).
    accuracy = first.loc["accuracy"]
    error = math.hypot(math.sqrt(0.04 / 0.96 / 2000), math.sqrt(0.08 / 0.92 / 2000))
    assert accuracy["ratio"] == pytest.approx(0.92 / 0.96)
    assert math.log(accuracy["high"] / accuracy["low"]) / 2 == pytest.approx(1.96 * error, rel=0.03)
    assert accuracy["significant"]


def test_totals_of_different_work_do_not_compare(tmp_path: Path, published: list[Group]) -> None:
    ten = published[0]
    one = copy.deepcopy(published[1].runs[0].manifest)
    for entry in one["cases"]:
        entry["passes"]["training"]["num_epochs"] = 1
    shorter = Run(tmp_path, one, _tables=published[1].runs[0]._tables)
    found = metric_ratios([ten, side("short", shorter)]).query("metric == 'total_time'")
    assert found["ratio"].isna().all()
    assert set(found["reason"]) == {"not comparable: 1 epoch here, 10 epochs in the baseline"}
    assert set(speedups([ten, side("short", shorter)])["metric"]) == {"time"}


def test_of_an_inference(tmp_path: Path) -> None:
    run = load_run(write_inference(tmp_path))
    found = metric_ratios([side("base", run), side("new", run)])
    first = found[found["case"] == found["case"][0]].set_index("metric")
    assert first["base"]["inference_time"] == pytest.approx(0.21 + 5.05)
    assert first["base"]["accuracy"] == 0.93
    assert first["base"]["time"] == pytest.approx(0.0505)
    assert (first["ratio"].dropna() == 1).all()


def test_energy_of_other_meters_does_not_compare(tmp_path: Path) -> None:
    runs = []
    for source, joules in (("rapl", 50.0), ("nvml", 20.0), ("rapl", 40.0)):
        entry = case_entry("vgg16", 32, "train")
        entry["passes"]["counters"] = {"status": "ok", "reason": None, "num_iterations": 10, "duration_s": 1.0,
                                       "sources": {source: {"status": "ok", "reason": None, "missing": {}}}}
        counter = {"phase": None, "time_s": None, "rank": 0, "device": "cpu", "source": source,
                   "counter": "energy_j", "value": joules}  # fmt: skip
        runs.append(run_of(tmp_path, (entry, {"counters": [counter]}), **manifest("profile")))
    sides = [side(label, run) for label, run in zip("abc", runs, strict=True)]
    found = metric_ratios(sides).query("metric == 'energy'").set_index("side")
    assert found["base"].to_list() == [5.0, 5.0]
    assert pd.isna(found["ratio"]["b"])
    assert found["reason"]["b"] == "not comparable: nvml here, rapl in the baseline"
    assert found["ratio"]["c"] == pytest.approx(0.8)
    assert not found["significant"]["c"]


def test_repetitions_without_their_problem_are_left_out(tmp_path: Path) -> None:
    """As in a record whose table of problems has lost a row."""
    run = vo(tmp_path)
    damaged = Run(run.path, run.manifest, _tables={"problems": run.problems.iloc[1:]})
    before, after = (sum(map(len, time_samples(each, "problem").values())) for each in (run, damaged))
    assert after == before - 1
