"""Predicted memory against what PyTorch's allocator counts, on whatever GPU is there."""

import contextlib
import gc
from collections.abc import Callable

import pytest
import torch

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import float32_products, unsupported_reason
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import this_device
from charact.workload.registry import find_workload

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CASES = [
    *((name, None, size, 16) for name in ("resnet18", "vgg11", "googlenet") for size in (96, 224)),
    *(("rnn_lm", "lstm", size, 20) for size in (35, 140)),
    *(("transformer", "base", size, 8) for size in (32, 128)),
]
"""Workload, variant, input size and batch size."""


def measured(case: Case) -> tuple[int, int]:
    """The most that a later iteration has allocated, and that has been reserved until then; bytes."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    loop = Loop(case)
    try:
        with float32_products(case.precision):
            for _ in range(2):
                loop.iteration(contextlib.nullcontext)
            torch.cuda.reset_peak_memory_stats()
            loop.iteration(contextlib.nullcontext)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved() - before
    finally:
        loop.close()


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator(this_device(torch.device("cuda", 0)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(("name", "variant", "size", "batch_size"), CASES)
def test_the_peak_is_predicted_within_2_percent(
    name: str, variant: str | None, size: int, batch_size: int, mode: str, precision: str, estimator: Estimator,
    record_property: Callable[[str, object], None],
) -> None:
    device = torch.device("cuda", 0)
    if why := unsupported_reason(precision, device):
        pytest.skip(why)
    case = Case(find_workload(name).prepare(variant), size, batch_size, mode, precision, device, DataRequest())
    facts = estimator.estimate(case).facts
    peak, reserved = measured(case)
    told = (f"{case.id}: predicted {facts['low_bytes']} ... {facts['peak_bytes']} ... {facts['high_bytes']}, measured "
            f"{peak}; reserved {facts['reserved_peak_bytes']}, measured {reserved}")
    print(told)
    record_property("memory", told)
    assert facts["peak_bytes"] == pytest.approx(peak, rel=0.02), told
    assert 0.998 * facts["low_bytes"] <= peak <= 1.002 * facts["high_bytes"], told
