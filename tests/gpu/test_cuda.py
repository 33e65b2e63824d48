"""What only a CUDA device can show: events against the host, kernels, the allocator's own count."""

from collections.abc import Callable
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
from charact.record.writer import RunWriter
from charact.workload.registry import find_workload

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


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
