"""CUPTI's sampling: samples become counters of phases, whatever clock they have, and each refusal is one line."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import stub_cupti
from support.small import small_case

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.counters import pm
from charact.measure.counters._support.protocol import Found, UnavailableError
from charact.measure.counters._support.rerun_case import child_command, run_child
from charact.measure.counters.pm.sampling import sampled
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

STUB = Path(stub_cupti.__path__[0])
FIVE = {"warp_occupancy_frac", "warp_execution_efficiency_frac", "nonpredicated_efficiency_frac",
        "bandwidth_utilization_frac", "flop_per_s"}
NEVER = {"flop_per_s", "warp_execution_efficiency_frac"}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `cupti` that is the stub, new in this process, and found by child processes."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "cupti"}
    monkeypatch.syspath_prepend(STUB)
    monkeypatch.setenv("TESTS_PROCESS", str(os.getpid()))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupti"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(scope="module")
def found() -> Found:
    """What a training whose forward is one product gives; taken again if another program took the core meanwhile."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(STUB)
        for _ in range(2):
            result = take(own_case())
            with contextlib.suppress(AssertionError):
                check_phases(result)
                return result
        return take(own_case())


def own_case(model: str = "Wide") -> Case:
    workload = own_model(f"support.rerun_nets:{model}", "", parse_input_spec("S"), "support.rerun_nets:squared", "SGD",
                         0.1).prepare()
    return Case(workload, 512, 256, "train", "fp32", torch.device("cpu"), DataRequest())


def take(case: Case) -> Found:
    loop = Loop(case)
    try:
        return pm.SOURCE.take(loop)
    finally:
        loop.close()


def sampled_here(case: Case) -> Found:
    """What the child process does, in this one."""
    loop = Loop(case)
    try:
        return sampled(loop)
    finally:
        loop.close()


def values(found: Found, phase: str | None) -> dict[str, float]:
    return {row["counter"]: row["value"] for row in found.rows if row["phase"] == phase and row.get("time_s") is None}


def check_phases(found: Found) -> None:
    """Hold the counters to those of the stub's device, on which each operator moves as many bytes."""
    whole, forward, update = values(found, None), values(found, "forward"), values(found, "update")
    assert set(whole) | set(found.missing) == {counter.name for counter in pm.SOURCE.counters} | NEVER >= FIVE
    assert set(found.missing) == NEVER
    assert all("--counters ncu" in reason for reason in found.missing.values())
    assert whole["nonpredicated_efficiency_frac"] == pytest.approx(0.875)
    # Products have 25 %, the rest 75 %: the forward is one product, the update has none.
    assert forward["warp_occupancy_frac"] == pytest.approx(0.25, abs=0.1)
    assert update["warp_occupancy_frac"] == pytest.approx(0.75, abs=0.1)
    assert 0 < whole["bandwidth_utilization_frac"] <= 1
    phases = {row["phase"] for row in found.rows if row["phase"] is not None}
    assert phases == {"data", "forward", "loss", "backward", "update"}
    parts = sum(values(found, phase).get("dram_bytes", 0.0) for phase in phases)
    assert 0.8 * whole["dram_bytes"] < parts <= 1.001 * whole["dram_bytes"]  # some samples are between two phases
    assert forward["dram_bytes"] == pytest.approx(1000, rel=0.3)  # what each operator moves


def test_counters_are_those_of_the_device_and_of_each_phase(found: Found) -> None:
    check_phases(found)


def test_samples_have_times_within_the_pass_and_phases(found: Found) -> None:
    end_s = max(span[1] for span in found.facts["spans"])
    samples = [row for row in found.rows if row.get("time_s") is not None]
    assert {row["counter"] for row in samples} >= FIVE - set(found.missing)
    assert all(-found.facts["sampling_interval_s"] <= row["time_s"] <= end_s + found.facts["sampling_interval_s"]
               for row in samples)
    assert all(0 <= row["value"] <= 1 for row in samples)
    assert {row["phase"] for row in samples} >= {"forward", "backward", "update"}
    assert found.facts["num_iterations"] == 2
    assert all({"counter", "device", "phase", "value"} <= set(row) for row in found.rows)
    assert {row["device"] for row in found.rows} == {"cpu"}
    assert found.facts["clock_error_s"] < end_s / 4


def test_metrics_that_do_not_fit_together_have_iterations_of_their_own(
    stub: None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STUB_CUPTI_CAPACITY", "3")
    found = sampled_here(own_case())
    assert found.facts["num_sets"] == 3
    assert found.missing == {}
    assert values(found, None)["nonpredicated_efficiency_frac"] == pytest.approx(0.875)


def test_what_never_fits_into_a_pass_is_missing(stub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_CUPTI_CAPACITY", "2")
    found = sampled_here(own_case())
    assert set(found.missing) == {"nonpredicated_efficiency_frac"}
    assert "more than one pass" in found.missing["nonpredicated_efficiency_frac"]


@pytest.mark.slow
def test_a_chip_without_a_timer_samples_by_cycles(stub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_CUPTI", "old")
    assert values(sampled_here(own_case()), None)["nonpredicated_efficiency_frac"] == pytest.approx(0.875)


@pytest.mark.parametrize(("failure", "reason", "remedy"), [
    ("permission", "only administrators", "NVreg_RestrictProfilingToAdminUsers=0"),
    ("old CUPTI", "not the one that cupti-python needs", "charact[cupti]"),
    ("enabled", "another profiler", "dcgmi"),
    ("libraries", "could not load the nvperf", "charact[cupti]"),
    ("blind", "none of the counters on ST100", "ncu"),
    ("empty", "0 intervals of work", "end other programs"),
])
def test_what_cupti_refuses_is_one_line_with_its_remedy(
    stub: None, monkeypatch: pytest.MonkeyPatch, failure: str, reason: str, remedy: str,
) -> None:
    monkeypatch.setenv("STUB_CUPTI", failure)
    with pytest.raises(UnavailableError, match=reason) as refused:
        sampled_here(own_case())
    assert remedy in str(refused.value.unavailable.remedy)
    assert "\n" not in refused.value.unavailable.reason


@pytest.mark.parametrize(("failure", "reason"), [
    ("no driver", "driver is not found"), pytest.param("permission", "only administrators", marks=pytest.mark.slow)])
def test_what_the_child_is_refused_its_parent_tells(
    stub: None, monkeypatch: pytest.MonkeyPatch, failure: str, reason: str,
) -> None:
    monkeypatch.setenv("STUB_CUPTI", failure)
    with pytest.raises(UnavailableError, match=reason) as refused:
        take(own_case())
    assert refused.value.unavailable.remedy is not None


@pytest.mark.slow
@pytest.mark.parametrize(("model", "reason"), [
    pytest.param("NoMemory", "not enough memory", marks=pytest.mark.slow), ("Killed", "ended by signal 9")])
def test_a_child_that_breaks_down_is_told(stub: None, model: str, reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        take(own_case(model))


def test_without_cupti_python_the_remedy_is_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="not installed") as refused:
        pm.SOURCE.take(None)  # type: ignore[arg-type]
    assert "charact[cupti]" in str(refused.value.unavailable.remedy)


def test_a_cupti_python_that_cannot_sample_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnavailableError, match=r"13\.3 or later"):
        pm.SOURCE.take(None)  # type: ignore[arg-type]


def test_cupti_is_loaded_before_pytorch(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(
        "import sys\nimport charact.measure.counters._support.pm_child\nsys.exit('torch' in sys.modules)\n",
        encoding="utf-8")
    assert run_child([sys.executable, str(tmp_path / "starts.py")], 60, tmp_path / "out.txt").status == 0


def test_a_workload_that_another_process_cannot_find_is_refused(stub: None) -> None:
    with pytest.raises(UnavailableError, match="two_layers in another process"):
        take(small_case())


def test_the_child_is_run_by_this_python() -> None:
    command = child_command("_support.pm_child", Path("a"))
    assert command == [sys.executable, "-P", "-m", "charact.measure.counters._support.pm_child", "a"]
    assert importlib.util.find_spec(command[3]) is not None
