"""Predicted memory against what PyTorch's allocator counts, on whatever GPU is there."""

from collections.abc import Callable

import pytest
import torch
from support.device_clocks import allocated_peak

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.precision import unsupported_reason
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
    estimate = estimator.estimate(case)
    peak, reserved = allocated_peak(case)
    told = (f"{case.id}: predicted {estimate.low_bytes} ... {estimate.peak_bytes} ... {estimate.high_bytes}, measured "
            f"{peak}; reserved {estimate.facts.reserved_peak_bytes}, measured {reserved}")
    print(told)
    record_property("memory", told)
    assert estimate.peak_bytes == pytest.approx(peak, rel=0.02), told
    assert 0.998 * estimate.low_bytes <= peak <= 1.002 * estimate.high_bytes, told
