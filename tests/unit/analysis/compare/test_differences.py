"""What accounts for a difference: worked out by hand on made records, and sums that hold whatever they hold."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judged import counted, judged, operator

from charact.analysis.compare.differences import differences, main_parts, missing_levels, operator_steps, phase_steps
from charact.analysis.compare.group_facts import clock_changes, context_changes, failed_cases, listed, side_facts
from charact.analysis.compare.matching import Group
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import Run
from charact.record.schema import PHASES

CASE = "net-32-b8-train-fp32-cpu"


def sides(base: Run | list[Run], new: Run | list[Run]) -> tuple[Group, Group]:
    runs = [tuple(each) if isinstance(each, list) else (each,) for each in (base, new)]
    return Group("base", runs[0]), Group("new", runs[1])


def found(base: Run | list[Run], new: Run | list[Run], level: str) -> pd.DataFrame:
    rows = differences(*sides(base, new), CASE)
    return rows[rows["level"] == level]


def deltas(rows: pd.DataFrame) -> dict[str, float]:
    return dict(zip(rows["name"], rows["delta_s"], strict=True))


def kernel(phase: str, of: str, name: str, device_s: float) -> dict[str, Any]:
    return {"phase": phase, "operator": of, "kernel": name, "num_calls": 1.0, "device_s": device_s}


def test_phases_sum_to_the_difference_of_the_medians(tmp_path: Path) -> None:
    base = judged(tmp_path, {"data": 0.01, "forward": 0.03, "backward": 0.05, "other": 0.01})
    new = judged(tmp_path, {"data": 0.01, "forward": 0.04, "loss": 0.002, "backward": 0.045})
    rows = found(base, new, "phase")
    assert deltas(rows) == pytest.approx(
        {"data": 0, "forward": 0.01, "loss": 0.002, "backward": -0.005, "other": -0.01})
    assert rows["status"].tolist() == ["both", "both", "appeared", "both", "vanished"]
    assert rows["delta_s"].sum() == pytest.approx(0.097 - 0.1)
    assert rows["base_s"].sum() == pytest.approx(0.1)
    steps = phase_steps(differences(*sides(base, new), CASE))
    assert steps["start_s"].tolist() == pytest.approx([0.1, 0.1, 0.11, 0.112, 0.107])
    assert steps["end_s"].tolist() == pytest.approx([0.1, 0.11, 0.112, 0.107, 0.097])


def test_repeats_share_the_group_alike(tmp_path: Path) -> None:
    # Medians of 40 and 90 ms have the geometric mean 60 ms; forward's shares, 1/2 and 2/3, the mean 7/12.
    base = [judged(tmp_path, {"forward": 0.02, "other": 0.02}), judged(tmp_path, {"forward": 0.06, "other": 0.03})]
    rows = found(base, judged(tmp_path, {"forward": 0.06}), "phase").set_index("name")
    assert rows["base_s"].to_dict() == pytest.approx({"forward": 0.035, "other": 0.025})
    assert rows["delta_s"].to_dict() == pytest.approx({"forward": 0.025, "other": -0.025})


def test_a_group_that_was_not_timed_has_no_differences(tmp_path: Path) -> None:
    rows = differences(*sides(judged(tmp_path, {"forward": 0.02}), judged(tmp_path, {})), CASE)
    assert rows.empty
    assert {"level", "phase", "name", "delta_s", "status"} <= set(rows.columns)


def test_operators_are_scaled_to_their_phase_and_sum_to_its_difference(tmp_path: Path) -> None:
    # Under the profiler all takes twice as long.
    copy = operator("forward", "copy", 0.01)
    base = judged(tmp_path, {"forward": 0.04}, [operator("forward", "GEMM", 0.05), copy], profiled={"forward": 0.08})
    new = judged(tmp_path, {"forward": 0.05}, [operator("forward", "GEMM", 0.07), copy], profiled={"forward": 0.1})
    rows = found(base, new, "operator")
    assert deltas(rows) == pytest.approx({"aten::GEMM": 0.01, "aten::copy": 0, OUTSIDE_OPERATORS: 0}, abs=1e-12)
    assert rows["name"].tolist()[0] == "aten::GEMM"
    assert rows["base_s"].tolist()[0] == pytest.approx(0.025)
    steps = operator_steps(differences(*sides(base, new), CASE))
    assert steps["name"].tolist()[0] == "forward: aten::GEMM"
    assert steps[["start_s", "end_s"]].to_numpy().tolist()[0] == pytest.approx([0.04, 0.05])


GEMM = operator("forward", "GEMM", 0.03)
BOTH_PHASES = [operator("forward", "GEMM", 0.02), operator("backward", "GEMM", 0.03)]


@pytest.mark.parametrize(("base", "new", "expected"), [
    (({"forward": 0.04}, [GEMM, operator("forward", "copy", 0.01)]),
     ({"forward": 0.04}, [GEMM, operator("forward", "loss", 0.005)]),
     {("forward", "aten::copy"): (-0.01, "vanished"), ("forward", "aten::loss"): (0.005, "appeared"),
      ("forward", OUTSIDE_OPERATORS): (0.005, "both"), ("forward", "aten::GEMM"): (0, "both")}),
    (({"forward": 0.02, "loss": 0.01}, [operator("forward", "GEMM", 0.02), operator("loss", "GEMM", 0.01)]),
     ({"forward": 0.03, "loss": 0.01}, [GEMM, operator("loss", "GEMM", 0.01)]),
     {("forward", "aten::GEMM"): (0.01, "both"), ("loss", "aten::GEMM"): (0, "both"),
      ("forward", OUTSIDE_OPERATORS): (0, "both"), ("loss", OUTSIDE_OPERATORS): (0, "both")}),
    (({"forward": 0.02, "backward": 0.03}, BOTH_PHASES),  # one group lacks the operators of a phase
     ({"forward": 0.02, "backward": 0.04}, BOTH_PHASES[:1]),
     {("backward", "aten::GEMM"): (-0.03, "vanished"), ("backward", OUTSIDE_OPERATORS): (0.04, "both"),
      ("forward", "aten::GEMM"): (0, "both"), ("forward", OUTSIDE_OPERATORS): (0, "both")}),
])
def test_operators_that_appear_vanish_or_stay(tmp_path: Path, base: Any, new: Any, expected: Any) -> None:
    rows = found(judged(tmp_path, *base), judged(tmp_path, *new), "operator").set_index(["phase", "name"])
    assert rows["delta_s"].to_dict() == pytest.approx({name: delta for name, (delta, _) in expected.items()}, abs=1e-12)
    assert rows["status"].to_dict() == {name: status for name, (_, status) in expected.items()}


def test_other_shapes_in_the_same_layer_are_named(tmp_path: Path) -> None:
    def run(shapes: str, layers: tuple[str, ...] = ("a", "b")) -> Run:
        rows = [operator("forward", "GEMM", 0.01, layer=layer) | {"input_shapes": shapes} for layer in layers]
        return judged(tmp_path, {"forward": 0.03}, [*rows, operator("forward", "copy", 0.01)])

    rows = found(run("[[8,32]]"), run("[[8,64]]"), "operator").set_index("name")[["status", "detail"]]
    assert rows.loc["aten::GEMM"].tolist() == ["shapes changed", "layer a: [[8,32]] → [[8,64]]; 1 more"]
    assert rows.loc["aten::copy", "status"] == "both"
    assert pd.isna(rows.loc["aten::copy", "detail"])
    moved = found(run("[[8,32]]"), run("[[8,64]]", ("c", "d")), "operator").set_index("name")
    assert moved.loc["aten::GEMM", "status"] == "both"


def test_new_calls_are_found_among_longer_ones(tmp_path: Path) -> None:
    def run(layers: Mapping[str | None, float]) -> Run:
        rows = [operator("forward", "GEMM", time_s, layer=layer) for layer, time_s in layers.items()]
        return judged(tmp_path, {"forward": 0.1}, [*rows, operator("forward", "copy", 0.01)])

    # The product in `a` differs by noise; the new one is known by its place.
    base, new = run({"a": 0.040, "b": 0.03}), run({"a": 0.038, "b": 0.03, None: 0.005})
    rows = found(base, new, "operator").set_index("name")
    assert rows.loc["aten::GEMM", ["status", "detail"]].tolist() == ["calls changed", "2 → 3"]
    layers = found(base, new, "layer")
    assert layers[["name", "layer", "status"]].to_numpy().tolist()[:2] == [
        ["aten::GEMM", "", "appeared"], ["aten::GEMM", "a", "both"]]
    of_operators = layers.groupby("name")["delta_s"].sum().to_dict()
    assert of_operators == pytest.approx({name: rows.loc[name, "delta_s"] for name in of_operators}, abs=1e-12)


def test_the_main_part_of_a_phase_changed_in_its_direction(tmp_path: Path) -> None:
    base, new = (judged(tmp_path, {"forward": forward_s, "update": 0.02},
                        [operator("forward", "GEMM", gemm_s), operator("forward", "copy", copy_s)])
                 for forward_s, gemm_s, copy_s in ((0.05, 0.04, 0.01), (0.06, 0.02, 0.02)))
    for pair, sign in (((base, new), 1), ((new, base), -1)):
        rows = main_parts(differences(*sides(*pair), CASE))
        assert rows.to_numpy().tolist() == [["forward", OUTSIDE_OPERATORS, "", pytest.approx(sign * 0.02)]]


def test_without_the_operators_of_a_group_there_are_none_and_a_reason(tmp_path: Path) -> None:
    failed = {"passes": {"operators": {"status": "failed", "reason": "the profiler broke"}}}
    base = judged(tmp_path, {"forward": 0.02}, [operator("forward", "GEMM", 0.02)])
    new = judged(tmp_path, {"forward": 0.03}, entry=failed)
    assert found(base, new, "operator").empty
    assert deltas(found(base, new, "phase")) == pytest.approx({"forward": 0.01})
    no_gpu = "no CUDA device: kernels run on GPUs only"
    assert missing_levels(*sides(base, new), CASE).to_numpy().tolist() == [
        ["kernel", "base", no_gpu], ["operator", "new", "the profiler broke"], ["kernel", "new", no_gpu]]


def test_communication_counts_as_far_as_it_is_exposed(tmp_path: Path) -> None:
    exposed = [counted("kineto", "communication_s", 0.04), counted("kineto", "exposed_communication_s", 0.01)]
    rows = [operator("backward", "GEMM", 0.03, device_s=0.03),
            operator("backward", "communication", 0.04, device_s=0.04)]
    base = judged(tmp_path, {"backward": 0.05}, rows, on_device=True, counters=exposed)
    new = judged(tmp_path, {"backward": 0.05}, rows[:1], on_device=True)
    assert deltas(found(base, new, "operator")) == pytest.approx(
        {"aten::communication": -0.01, OUTSIDE_OPERATORS: 0.01, "aten::GEMM": 0}, abs=1e-12)


def test_another_kernel_of_an_operator_is_named(tmp_path: Path) -> None:
    def run(name: str, device_s: float) -> Run:
        rows = [operator("forward", "GEMM", 0.001, device_s=device_s),
                operator("forward", "copy", 0.001, device_s=0.01)]
        return judged(tmp_path, {"forward": 0.05}, rows, on_device=True,
                      kernels=[kernel("forward", "aten::GEMM", name, device_s),
                               kernel("forward", "aten::copy", "memcpy", 0.01)])

    runs = run("gemm_64x64", 0.02), run("gemm_<128>", 0.03)
    operators = found(*runs, "operator").set_index("name")
    assert operators.loc["aten::GEMM", ["status", "detail"]].tolist() == ["kernel changed", "gemm_64x64 → gemm_<128>"]
    assert operators["delta_s"].to_dict() == pytest.approx(
        {"aten::GEMM": 0.01, OUTSIDE_OPERATORS: -0.01, "aten::copy": 0}, abs=1e-12)
    kernels = found(*runs, "kernel")
    assert deltas(kernels) == pytest.approx({"gemm_<128>": 0.03, "gemm_64x64": -0.02, "memcpy": 0})
    assert kernels["status"].tolist() == ["appeared", "vanished", "both"]
    assert kernels["operator"].tolist() == ["aten::GEMM", "aten::GEMM", "aten::copy"]


@st.composite
def made(draw: st.DrawFn) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, float]]:
    """Phases, operators in some of them, and the phases under the profiler, some of which may be missing."""
    seconds = st.floats(1e-6, 10)
    phases = draw(st.dictionaries(st.sampled_from(PHASES), seconds, min_size=1))
    where = st.sampled_from(sorted(phases))
    kinds = st.sampled_from(["GEMM", "copy", "communication", "view"])
    operators = draw(st.lists(st.builds(operator, where, kinds, seconds), max_size=6))
    return phases, operators, draw(st.dictionaries(where, seconds))


@pytest.mark.slow
@given(made(), made(), st.booleans())
def test_sums_hold_whatever_the_records_hold(base: Any, new: Any, swap: bool) -> None:
    with tempfile.TemporaryDirectory() as out:
        runs = [judged(Path(out), phases, operators, profiled=profiled) for phases, operators, profiled in (base, new)]
        rows = differences(*sides(*runs), CASE)
        back = differences(*sides(runs[1], runs[0]), CASE)
    medians = [sum(phases.values()) for phases, *_ in (base, new)]
    phases = rows[rows["level"] == "phase"].set_index("name")["delta_s"]
    assert phases.sum() == pytest.approx(medians[1] - medians[0], rel=1e-9, abs=1e-9)
    operators = rows[rows["level"] == "operator"].groupby("phase")["delta_s"].sum()
    assert operators.to_dict() == pytest.approx(phases[operators.index].to_dict(), rel=1e-9, abs=1e-9)
    assert (rows[["base_s", "new_s"]] >= -1e-9).all(axis=None)
    keys = ["level", "phase", "operator", "name"]
    both = rows.merge(back, on=keys, suffixes=("", "_back"))
    assert len(both) == len(rows)
    assert both["delta_s"].tolist() == pytest.approx((-both["delta_s_back"]).tolist(), abs=1e-9)


def test_a_run_against_itself_differs_in_nothing(tmp_path: Path) -> None:
    run = judged(tmp_path, {"forward": 0.03, "other": 0.01}, [operator("forward", "GEMM", 0.02)])
    rows = differences(*sides(run, run), CASE)
    assert (rows["delta_s"] == 0).all()
    assert (rows["status"] == "both").all()
    assert context_changes(*sides(run, run)).empty
    assert clock_changes(*sides(run, run), CASE).empty


def changed(out: Path, base: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    rows = context_changes(*sides(*(judged(out, {"forward": 0.01}, manifest=manifest) for manifest in (base, new))))
    assert rows.columns.tolist() == ["fact", "base", "new"]
    return {fact: [None if pd.isna(value) else value for value in values] for fact, *values in rows.to_numpy().tolist()}


def test_changed_versions_options_and_machines(tmp_path: Path) -> None:
    base = {"software": {"torch": "2.12", "git": {"commit": "a"}}, "options": {"threads": 2}}
    new = {"software": {"torch": "2.13", "git": {"commit": "a"}, "environment": {"OMP_NUM_THREADS": "1"}},
           "options": {"threads": 4, "channels_last": True, "layers": ["x", "y"],
                       "arguments": ["a", "--lr=1e-3", "--key=b", "-2", "--c", "d4"]},
           "machine": {"cpu": {"model": "other"}, "fingerprint": "f", "gpus": [{"name": "H100", "driver": None}]}}
    assert changed(tmp_path, base, new) == {
        "software.torch": ["2.12", "2.13"], "software.environment.OMP_NUM_THREADS": [None, "1"],
        "options.threads": ["2", "4"], "options.channels_last": ["no", "yes"],
        "options.arguments": [None, "… --lr=1e-3 --key=… -2 --c …"], "options.layers": [None, "x, y"],
        "machine.cpu.model": ["AMD EPYC", "other"], "machine.cpu.num_physical_cores": ["2", None],
        "machine.cpu.num_logical_cores": ["2", None], "machine.cpu.num_usable_cores": ["2", None],
        "machine.gpus.0.name": [None, "H100"]}


def test_each_value_of_repeats_is_named_once_and_the_first_of_many(tmp_path: Path) -> None:
    runs = [judged(tmp_path, {"forward": 0.01}, manifest={"options": {"seed": seed}}) for seed in (1, 2, 1)]
    rows = context_changes(*sides(runs, runs[:1]))
    assert rows.to_numpy().tolist() == [["options.seed", "1; 2", "1"]]
    assert context_changes(*sides(runs, list(reversed(runs)))).empty
    assert listed([str(seed) for seed in range(12)]) == "0; 1; 2; 3; 4; 5; 6; 7; 4 more"
    assert listed("abcdefgh") == "a; b; c; d; e; f; g; h"


def test_facts_of_groups(tmp_path: Path) -> None:
    runs = [judged(tmp_path, {"forward": 0.01}) for _ in range(2)]
    one, two = side_facts(sides(runs[0], runs)).to_dict("records")
    assert (one["num_runs"], one["num_cases"], one["origin"]) == (1, 1, runs[0].run_id)
    first = min(run.run_id for run in runs)
    assert (two["num_runs"], two["num_cases"], two["origin"]) == (2, 1, f"2 runs, {first} and later")
    assert one["torch"] == two["torch"] == "2.13.0+cpu"
    failed = judged(tmp_path, {}, entry={"status": "oom", "reason": "no room"})
    assert failed_cases(sides(runs, failed)).to_numpy().tolist() == [["new", CASE, "oom", "no room"]]


def test_clocks_that_differ_by_more_than_a_percent(tmp_path: Path) -> None:
    def run(clock_hz: float, memory_hz: float) -> Run:
        return judged(tmp_path, {"forward": 0.01}, counters=[
            counted("nvml", "sm_clock_hz", clock_hz), counted("nvml", "memory_clock_hz", memory_hz),
            counted("nvml", "power_w", clock_hz / 1e7)])

    rows = clock_changes(*sides(run(1.98e9, 2.6e9), run(1.41e9, 2.605e9)), CASE)
    assert rows.to_numpy().tolist() == [["sm_clock_hz", "nvml", 1.98e9, 1.41e9]]
