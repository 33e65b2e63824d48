import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.brick_runs import CASE, brick_run, composition, infer_run
from support.records import manifest

from charact.bricks.analysis.construction import BrickTimes, Correction, construct, constructed_case
from charact.bricks.analysis.machines import latency_by_machine
from charact.bricks.analysis.tables import latency_errors, normalized_latency
from charact.bricks.suite.composition import Composition
from charact.record.in_progress import write_manifest
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter

Model = tuple[Composition, dict[str, float]]
"""With what was measured of it by phase."""
LEARNED = Correction(0.9, 0.0, 0.0, 0.0, {}, ["a", "b"], 0.1, 0.01, 0.02)
NONE = "no correction was learned"


def iterations(phases: dict[str, float]) -> list[dict[str, Any]]:
    """Three measured iterations: a tenth faster, as given, twice as slow."""
    return [{"iteration": number, "phase": phase, "part": None, "host_s": factor * time_s, "device_s": None}
            for number, factor in enumerate((0.9, 1.0, 2.0)) for phase, time_s in phases.items()]  # fmt: skip


def record(out: Path, times: BrickTimes, models: list[Model], correction: Correction | str = NONE,
           hostname: str = "bench-1") -> Run:
    """A construct record of models."""
    facts = manifest("bricks", "construct")
    facts["machine"]["hostname"] = hostname
    writer = RunWriter(out, "construct", facts)
    for model, phases in models:
        entry, tables = constructed_case(construct(model, times, correction), correction)
        writer.add_case(entry, {**tables, "iterations": iterations(phases)})
    writer.close("complete")
    return load_run(writer.publish())


def named(name: str, bricks: str, measured: dict[str, float] | None = None, **facts: Any) -> Model:
    made = composition(bricks, case=f"{name}-8-b1-{facts.get('mode', 'infer')}-fp32", model=name, **facts)
    return made, measured or {}


@pytest.fixture
def times(tmp_path: Path) -> BrickTimes:
    return BrickTimes(infer_run(tmp_path, {"a": 0.010, "b": 0.030}), CASE)


def test_a_constructed_model_is_read_as_it_was_written(tmp_path: Path, times: BrickTimes) -> None:
    run = record(tmp_path, times, [named("one", "ab"), named("two", "ax")], LEARNED)
    assert run.cases["case"].tolist() == ["one-8-b1-infer-fp32-cpu", "two-8-b1-infer-fp32-cpu"]
    assert run.cases["status"].tolist() == ["ok", "error"]
    assert "the run lacks 1 of 2 segments" in run.cases["reason"][1]
    told = run.passes("one-8-b1-infer-fp32-cpu")["construct"]
    assert (told["brick_run"], told["num_pieces"], told["num_bricks"], told["g"]) == (times.run.run_id, 2, 2, 1)
    assert (told["timed_s"], told["set_up_s"], told["num_rounds"]) == (2.0, 0.5, 9)
    assert told["correction"]["factor"] == 0.9
    sums = run.pieces.groupby("case")["time_s"].sum()
    assert sums["one-8-b1-infer-fp32-cpu"] == pytest.approx(0.040)
    found = run.constructions.set_index(["case", "strategy"])["latency_s"]
    assert found["one-8-b1-infer-fp32-cpu"].to_dict() == pytest.approx(
        {"sequential": 0.040, "critical_path": 0.040, "corrected": 0.036})
    assert found["two-8-b1-infer-fp32-cpu"].isna().all()


def test_latencies_are_held_against_what_was_measured(tmp_path: Path, times: BrickTimes) -> None:
    run = record(tmp_path, times, [named("one", "ab", {"forward": 0.050, "other": 0.001}), named("two", "aaa")])
    found = normalized_latency(run).query("strategy == 'sequential'").set_index("workload")
    assert found.loc["one", "measured_s"] == 0.050
    assert found.loc["one", "normalized"] == pytest.approx(0.8)
    assert found.loc["one", "error_frac"] == pytest.approx(-0.2)
    assert found.loc["one", "measured_reason"] is None
    assert math.isnan(found.loc["two", "normalized"])
    assert found.loc["two", "measured_reason"] == "not measured: --verify measures it"
    assert found[["g", "cut_method", "timing_method"]].to_numpy().tolist() == [[1, "chains", "contextual"]] * 2


def test_a_model_that_could_not_be_run_has_its_reason(tmp_path: Path, times: BrickTimes) -> None:
    written = record(tmp_path, times, [named("one", "ab")])
    edited = json.loads((written.path / "run.json").read_text())
    for case in edited["cases"]:
        case["passes"]["timing"] = {"status": "failed", "reason": "no such luck"}
    write_manifest(written.path, edited)
    assert normalized_latency(load_run(written.path))["measured_reason"].unique().tolist() == ["no such luck"]


def test_trainings_are_compared_by_phase(tmp_path: Path) -> None:
    run = brick_run(tmp_path, {"a": {"forward": 0.010, "backward": 0.020}, "u": {"update": 0.001}}, mode="train",
                    rows={"u": {"kind": "update"}})  # fmt: skip
    measured = {"forward": 0.008, "loss": 0.002, "backward": 0.025, "update": 0.002, "other": 0.5}
    model = named("one", "a", measured, mode="train", updates=(("u", 2),))
    found = normalized_latency(record(tmp_path, BrickTimes(run, CASE.replace("infer", "train")), [model]))
    assert found.query("strategy == 'sequential'").set_index("phase")["normalized"].to_dict() == pytest.approx(
        {"forward": 1.0, "backward": 0.8, "update": 1.0, "all": 0.032 / 0.037})


def test_errors_over_models_are_known(tmp_path: Path, times: BrickTimes) -> None:
    """Constructed 10, 30 and 40 ms: a half, twice and four thirds of what was measured."""
    run = record(tmp_path, times, [named("one", "a", {"forward": 0.020}), named("two", "b", {"forward": 0.015}),
                                   named("three", "ab", {"forward": 0.030}), named("four", "ab")])  # fmt: skip
    found = latency_errors(normalized_latency(run)).set_index("strategy").loc["sequential"]
    assert found["num_models"] == 3
    assert found["geometric_mean"] == pytest.approx((0.5 * 2 * 4 / 3) ** (1 / 3))
    assert found["mean_abs_error_frac"] == pytest.approx((0.5 + 1 + 1 / 3) / 3)
    assert (found["worst_error_frac"], found["worst_case"]) == (pytest.approx(1.0), "two-8-b1-infer-fp32-cpu")


def test_errors_of_records_are_by_g_and_strategy(tmp_path: Path, times: BrickTimes) -> None:
    records = [record(tmp_path, times, [named("one", "a", {"forward": 0.020}, g=g)], LEARNED) for g in (1, 2)]
    found = latency_errors(pd.concat([normalized_latency(run) for run in records]))
    assert found[["g", "strategy"]].to_numpy().tolist() == [
        [g, strategy] for g in (1, 2) for strategy in ("sequential", "critical_path", "corrected")]
    assert found["geometric_mean"].tolist() == pytest.approx([0.5, 0.5, 0.45] * 2)


def test_without_measurements_and_models_tables_are_empty(tmp_path: Path, times: BrickTimes) -> None:
    run = record(tmp_path, times, [])
    assert normalized_latency(run).empty
    assert latency_errors(normalized_latency(run)).empty
    assert latency_by_machine([run]).empty
    assert latency_errors(normalized_latency(record(tmp_path, times, [named("one", "a")]))).empty


def test_models_are_told_by_machine(tmp_path: Path, times: BrickTimes) -> None:
    models = [named("one", "a"), named("two", "b"), named("three", "x")]
    other = BrickTimes(infer_run(tmp_path, {"a": 0.002, "b": 0.003}), CASE)
    runs = [record(tmp_path, times, models, LEARNED), record(tmp_path, other, models, hostname="bench-2")]
    found = latency_by_machine(runs)
    assert found["workload"].tolist() == ["one", "one", "two", "two", "three", "three"]
    assert found["machine"].tolist() == [f"AMD EPYC, 2 cores on bench-{number}" for number in (1, 2)] * 3
    assert found["latency_s"].tolist()[:4] == pytest.approx([0.010, 0.002, 0.030, 0.003])
    assert found["strategy"].tolist()[:4] == ["sequential"] * 4
    both = latency_by_machine([runs[0], record(tmp_path, other, models, LEARNED, hostname="bench-2")])
    assert both["strategy"].tolist()[:4] == ["corrected"] * 4
    assert both["latency_s"].tolist()[:4] == pytest.approx([0.009, 0.0018, 0.027, 0.0027])
    assert found["latency_s"].isna().tolist() == [False] * 4 + [True] * 2
    assert found["reason"][4].startswith("the run lacks 1 of 1 segments")


@pytest.mark.parametrize(("options", "names"), [
    ([{"threads": 1, "brick_run": "x"}, {"threads": 2, "brick_run": "y"}], ["threads 1", "threads 2"]),
    ([{"threads": 1, "brick_run": "x"}, {"threads": 1, "brick_run": "y"}], ["x", "y"]),
    ([{"threads": 1, "brick_run": "x"}, {"threads": 1, "brick_run": "x"}], ["", ""]),
])
def test_runs_of_one_machine_are_told_apart(
        tmp_path: Path, times: BrickTimes, options: list[dict[str, Any]], names: list[str]) -> None:
    runs = [record(tmp_path, times, [named("one", "a")]) for _ in options]
    for run, asked in zip(runs, options, strict=True):
        run.manifest["options"] |= asked
    found = latency_by_machine(runs)["machine"].tolist()
    assert [name.removeprefix("AMD EPYC, 2 cores on bench-1").removeprefix(", ") for name in found] == names
