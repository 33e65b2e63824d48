"""What only a CUDA device can show: events against the host, kernels, the allocator's own count."""

from pathlib import Path

import pytest
import torch
from support.notes import Notes

from charact import load_run
from charact.measure.case import Case
from charact.measure.interrupt import Interrupt
from charact.measure.runner import run_cases
from charact.measure.timing import StopRule
from charact.store import Run, RunWriter
from charact.workload import DataRequest, find_workload

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    workload = find_workload("resnet18").prepare()
    device = torch.device("cuda", 0)
    cases = [Case(workload, 64, 16, mode, precision, device, DataRequest(), channels_last=channels_last)
             for mode in ("train", "infer") for precision, channels_last in (("fp32", False), ("fp16", True))]
    writer = RunWriter(tmp_path_factory.mktemp("runs"), "gpu", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        run_cases(cases, StopRule(max_iterations=30), writer, Notes(), interrupt)
    assert interrupt.signal is None
    writer.close("complete")
    return load_run(writer.publish())


def test_every_case_and_pass_succeeds(run: Run) -> None:
    assert list(run.cases["status"]) == ["ok"] * 4, list(run.cases["reason"])
    for case in run.cases["case"]:
        assert {name: facts["status"] for name, facts in run.passes(case).items()} == dict.fromkeys(
            ("timing", "operators", "kernels", "memory", "flop"), "ok")


def test_device_time_is_there_and_agrees_with_the_host_over_many_iterations(run: Run) -> None:
    walls = run.iterations.groupby(["case", "iteration"])[["host_s", "device_s"]].sum()
    assert walls["device_s"].notna().all()
    assert (run.iterations["device_s"] >= 0).all()
    # The host may run ahead, but not for long: over the case both clocks saw the same stretch.
    totals = walls.groupby("case").sum()
    assert (totals["device_s"] / totals["host_s"]).between(0.8, 2.0).all()


def test_kernels_carry_their_geometry_operator_and_phase(run: Run) -> None:
    kernels = run.kernels[run.kernels["grid"].notna()]
    assert len(kernels)
    assert kernels["occupancy_frac"].dropna().between(0, 1).all()
    assert kernels["operator"].notna().mean() > 0.95
    assert set(kernels["phase"].dropna()) >= {"forward", "backward", "update"}


def test_operators_account_for_the_kernels_time(run: Run) -> None:
    by_operator = run.operators.groupby("case")["device_s"].sum()
    by_kernel = run.kernels.groupby("case")["device_s"].sum()
    assert (by_operator / by_kernel).between(0.95, 1.001).all()


def test_the_sum_over_events_is_the_allocators_peak(run: Run) -> None:
    for case in run.cases["case"]:
        facts = run.passes(case)["memory"]
        assert facts["peak_bytes"] == pytest.approx(facts["allocator_peak_bytes"], rel=0.01)


def test_running_out_of_memory_is_recorded_with_its_size(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_per_process_memory_fraction(0.02, device)
    case = Case(find_workload("vgg11").prepare(), 64, 4000, "train", "fp32", device, DataRequest())
    writer = RunWriter(tmp_path, "oom", {"machine": {}, "software": {}, "options": {}})
    try:
        with Interrupt() as interrupt:
            run_cases([case], StopRule(max_iterations=1), writer, Notes(), interrupt)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    (entry,) = writer.manifest["cases"]
    assert entry["status"] == "oom"
    assert entry["requested_bytes"] > 1e6
