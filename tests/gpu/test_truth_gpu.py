"""Times against clocks that charact has no part in: whole blocks, a trace that is parsed here, replays of a graph."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import torch
from support.device_clocks import block_s, events_s, graph_s, kernel_s, marked_block_s, running, unmarked

import charact
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import float32_products
from charact.measure.microbench.operation_timing import rotated_inputs, time_direction
from charact.measure.passes.phase_timer import phases_for
from charact.measure.passes.timing import StopRule, timing_pass
from charact.measure.passes.warm_device import warm_device
from charact.ops import all_kinds, parse_problem
from charact.workload.registry import find_workload

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    """One in which the device always has work: the host is far ahead of it."""
    case = Case(find_workload("resnet50").prepare(), 224, 64, "train", "fp32", DEVICE, DataRequest())
    with running(case) as loop:
        for _ in range(3):
            loop.iteration(unmarked)
        warm_device(DEVICE, lambda: loop.iteration(unmarked))
        yield loop


@pytest.fixture(scope="module")
def phase_s(loop: Loop) -> dict[str, float]:
    """Median device time of each phase in the timing pass (s)."""
    of_phase: dict[str, list[float]] = defaultdict(list)
    for row in timing_pass(loop, StopRule(0.0, 30, 20.0), lambda *_: None).rows:
        of_phase[row["phase"]].append(row["device_s"])
    return {phase: median(times) for phase, times in of_phase.items()}


def test_an_iteration_takes_its_share_of_a_block(loop: Loop, phase_s: dict[str, float]) -> None:
    ours = median(block_s(loop, 15) for _ in range(5))
    assert 0.97 <= sum(phase_s.values()) / ours <= 1.03


def test_phases_take_as_long_as_their_kernels(loop: Loop, phase_s: dict[str, float], tmp_path: Path) -> None:
    ours = kernel_s(loop, tmp_path / "trace.json", 4)
    for phase in ("forward", "backward"):
        assert 0.97 <= phase_s[phase] / ours[phase] <= 1.03, phase
    assert 0.97 <= phase_s["update"] / ours["update"] <= 1.15  # many short kernels, with gaps between them
    assert 0.97 <= sum(phase_s.values()) / sum(ours.values()) <= 1.05


def test_marks_of_phases_cost_at_most_half_a_percent(loop: Loop) -> None:
    phases = phases_for(DEVICE)
    assert median(marked_block_s(loop, 15, phases) / block_s(loop, 15) for _ in range(9)) <= 1.005


@pytest.mark.parametrize("text", [
    "gemm:4096x4096x4096", "gemm:512x512x512", "convolution:8x64x28x28:64x3x3:p1", "convolution:32x64x56x56:64x3x3:p1"])
def test_operations_take_as_long_as_in_a_graph(text: str) -> None:
    """In a replay no launch is waited for, also of kernels that are shorter than a launch."""
    problem = parse_problem(text)
    prepared = all_kinds()[problem.operation].prepare(problem, "forward", "fp32", DEVICE)
    rotated = rotated_inputs(prepared, DEVICE, hot=True)
    with float32_products("fp32"):
        rows = time_direction(prepared, rotated, DEVICE, StopRule(0.0, 30, 5.0), lambda *_: None).rows
        ours = graph_s(partial(prepared.call, *rotated[0]))
    assert 0.9 <= median(row["device_s"] for row in rows) / ours <= 1.1


def test_a_profiled_function_takes_as_long_as_by_our_own_events(tmp_path: Path) -> None:
    left, right = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(2))
    run = charact.profile(lambda: torch.mm(left, right), out=tmp_path, name="product")
    ours = median(events_s(lambda: torch.mm(left, right)) for _ in range(20))
    facts = run.passes("product-infer")["timing"]
    assert 0.95 <= facts["median_s"] / ours <= 1.05
    assert 0.95 <= run.iterations.groupby("iteration")["device_s"].sum().median() / ours <= 1.05


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_function_on_the_second_device_has_its_times(tmp_path: Path) -> None:
    left, right = (torch.randn(4096, 4096, device="cuda:1") for _ in range(2))
    run = charact.profile(lambda: torch.mm(left, right), out=tmp_path, name="product")
    assert run.cases["device"].item() == "cuda:1"
    assert run.passes("product-infer")["timing"]["median_s"] > 2 * 4096**3 / 2e15
