"""What only a CUDA device can show: events against the host, kernels, the allocator's own count."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.notes import Notes

from charact import load_run
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.execution.precision import float32_products
from charact.measure.counters import chosen_sources
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.measure.training.infer_case import InferencePlan, infer_cases
from charact.record.reader import Run
from charact.record.writer import RunWriter
from charact.workload.registry import find_workload

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    workload = find_workload("resnet18").prepare()
    device = torch.device("cuda", 0)
    cases = [Case(workload, 64, 16, mode, precision, device, DataRequest(), channels_last=channels_last)
             for mode in ("train", "infer") for precision, channels_last in (("fp32", False), ("fp16", True))]
    writer = RunWriter(tmp_path_factory.mktemp("runs"), "gpu", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        run_cases(cases, StopRule(max_iterations=30), writer, Notes(), interrupt, chosen_sources(None))
    assert interrupt.signal is None
    writer.close("complete")
    return load_run(writer.publish())


def test_every_case_and_pass_succeeds(run: Run) -> None:
    assert list(run.cases["status"]) == ["ok"] * 4, list(run.cases["reason"])
    for case in run.cases["case"]:
        assert {name: facts["status"] for name, facts in run.passes(case).items()} == dict.fromkeys(
            ("timing", "operators", "kernels", "memory", "flop", "counters"), "ok")


def test_every_iteration_has_device_times(run: Run) -> None:
    walls = run.iterations.groupby(["case", "iteration"])[["host_s", "device_s"]].sum()
    assert walls["device_s"].notna().all()
    assert (run.iterations["device_s"] >= 0).all()


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


def test_counters_of_the_trace_agree_with_its_kernels(run: Run) -> None:
    counters = run.counters.query("source == 'kineto'").set_index(["case", "counter"])["value"]
    for case in run.cases["case"]:
        used = counters[case]
        num_iterations = run.passes(case)["operators"]["num_counted_iterations"]
        kernels_s = num_iterations * run.kernels.query("case == @case")["device_s"].sum()
        assert 0.9 * kernels_s <= used["busy_s"] <= 1.001 * kernels_s  # one stream: hardly any two at once
        assert used["busy_s"] + used["idle_s"] == pytest.approx(used["span_s"])
        assert 0 < used["warp_occupancy_frac"] < 1
        assert used["launch_delay_s"] > 0
        assert used["num_gaps"] > 0
        # float32 is computed without TF32; in half precision ResNet's products take most of the time.
        assert used["tensor_core_frac"] > 0.2 if "fp16" in case else used["tensor_core_frac"] == 0


def test_phases_of_the_counter_pass_lie_one_after_the_other_on_the_hosts_clock(run: Run) -> None:
    for case in run.cases["case"]:
        facts = run.passes(case)["counters"]
        spans = sorted(facts["spans"])
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(spans))
        assert all(-1e-3 <= start_s <= end_s for start_s, end_s, _ in spans)
        assert {"data", "forward"} <= {phase for _, _, phase in spans}
        assert spans[-1][1] <= facts["duration_s"] + 1e-3
        assert facts["sources"]["host"]["status"] == facts["sources"]["kineto"]["status"] == "ok"


def test_the_sum_over_events_is_the_allocators_peak(run: Run) -> None:
    for case in run.cases["case"]:
        facts = run.passes(case)["memory"]
        assert facts["peak_bytes"] == pytest.approx(facts["allocator_peak_bytes"], rel=0.01)


def product_error(precision: str, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
                  shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> float:
    """Largest error of a float32 product in a case of that precision, as a share of its largest value."""
    torch.manual_seed(0)
    a, b = (torch.randn(shape, device="cuda") for shape in shapes)
    with float32_products(precision):
        found = product(a, b).double()
    exact = product(a.double(), b.double())
    return float((found - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize(("product", "shapes"), [
    (torch.matmul, ((512, 1024), (1024, 512))),
    (torch.nn.functional.conv2d, ((16, 64, 32, 32), (64, 64, 3, 3))),
])
def test_products_are_rounded_to_tf32_in_that_precision_alone(
        product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """TF32 keeps 10 bits of a factor, float32 23: their errors are hundreds of times apart."""
    assert product_error("fp32", product, shapes) < 1e-5
    if torch.cuda.get_device_capability() >= (8, 0):
        assert 5e-5 < product_error("tf32", product, shapes) < 5e-3


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0),
                    reason="the GPU has neither TF32 nor bfloat16")
@pytest.mark.parametrize("precision", ["tf32", "pure-bf16"])
def test_all_passes_succeed_and_count_the_same_work_in(precision: str, tmp_path: Path) -> None:
    workload, device = find_workload("resnet18").prepare(), torch.device("cuda", 0)
    cases = [Case(workload, 64, 16, "train", each, device, DataRequest()) for each in ("fp32", precision)]
    writer = RunWriter(tmp_path, "precisions", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        run_cases(cases, StopRule(max_iterations=10), writer, Notes(), interrupt, chosen_sources(["host"]))
    writer.close("complete")
    run = load_run(writer.publish())
    assert list(run.cases["status"]) == ["ok", "ok"], list(run.cases["reason"])
    for case in run.cases["case"]:
        assert {facts["status"] for facts in run.passes(case).values()} == {"ok"}
    flop = run.flop.groupby("case")["flop"].sum()
    assert flop[cases[0].id] == flop[cases[1].id] > 0
    weights = run.memory.query("kind == 'peak' and category == 'weights'").set_index("case")["bytes"]
    share = 0.5 if precision == "pure-bf16" else 1.0
    assert weights[cases[1].id] == pytest.approx(share * weights[cases[0].id], rel=0.01)


def test_an_inference_ends_when_the_device_has_and_every_batch_has_both_clocks(tmp_path: Path) -> None:
    case = Case(find_workload("resnet18").prepare("cifar"), 32, 512, "infer", "fp32", torch.device("cuda", 0),
                DataRequest(split="test"))
    writer = RunWriter(tmp_path, "infer", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        infer_cases([case], InferencePlan(max_batches=6), writer, Notes(), interrupt)
    writer.close("complete")
    run = load_run(writer.publish())
    assert list(run.cases["status"]) == ["ok"], list(run.cases["reason"])
    prediction = run.stages[run.stages["stage"] == "prediction"]
    assert prediction["device_s"].notna().all()
    assert run.iterations["device_s"].notna().all()
    assert prediction["host_s"].sum() >= 0.99 * prediction["device_s"].sum()


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
