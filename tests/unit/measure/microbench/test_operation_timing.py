"""Timing of operations: inputs, repetitions, agreement with PyTorch's timer, and errors."""

import math
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from charact.machine.cache_sizes import CacheLevel
from charact.measure.microbench import operation_timing
from charact.measure.microbench.call_timer import REPEAT_S
from charact.measure.microbench.operation_timing import (
    cache_bytes,
    near_cache_bytes,
    result_error,
    rotated_inputs,
    tensor_bytes,
    time_direction,
)
from charact.measure.passes.timing import StopRule
from charact.ops import Prepared, all_kinds, parse_problem

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
RULE = StopRule(precision_target_frac=0.0, max_iterations=8, max_seconds=5.0)


def prepared(call: Callable[..., Tensor], size: int = 4) -> Prepared:
    return Prepared(inputs=lambda: [torch.ones(size)], call=call, reference=lambda one: one.double(),
                    compared=lambda result: result, tolerance=0.0)


def untold(num_repetitions: int, median_s: float) -> None:
    assert num_repetitions >= 1
    assert median_s > 0


def test_a_long_call_is_a_repetition_by_itself() -> None:
    calls = []

    def call(one: Tensor) -> Tensor:
        calls.append(one)
        time.sleep(2 * REPEAT_S)
        return one

    timing = time_direction(prepared(call), [[torch.ones(1)]], CPU, RULE, untold)
    assert [(row["repetition"], row["num_calls"]) for row in timing.rows] == [(number, 1) for number in range(8)]
    assert all(row["host_s"] >= 2 * REPEAT_S and row["device_s"] is None for row in timing.rows)
    assert len(calls) == timing.facts.num_warmup_calls + 8
    assert (timing.facts.ended_by, timing.facts.num_repetitions) == ("max_iterations", 8)


def test_short_calls_are_timed_together_and_told_each_by_itself() -> None:
    num_calls = 0

    def call(one: Tensor) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return one

    timing = time_direction(prepared(call), [[torch.ones(1)]], CPU, RULE, untold)
    (together,) = {row["num_calls"] for row in timing.rows}
    assert 20 < together <= 1000  # as many as fit into a millisecond, on a slow machine fewer
    assert num_calls == timing.facts.num_warmup_calls + 8 * together
    assert all(row["host_s"] < REPEAT_S for row in timing.rows)


def test_each_call_has_the_next_inputs() -> None:
    seen = []

    def call(one: Tensor) -> Tensor:
        seen.append(int(one))
        return one

    rotated = [[torch.tensor(number)] for number in range(5)]
    time_direction(prepared(call), rotated, CPU, RULE, untold)
    assert all((after - before) % 5 == 1 for before, after in pairwise(seen))


def test_there_are_as_many_inputs_as_the_cache_needs_to_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_timing, "cache_bytes", lambda device: 1000)
    made = prepared(lambda one: one, size=25)  # 100 bytes
    assert len(rotated_inputs(made, CPU, hot=False)) == 21  # between two uses of one, 2000 bytes of others
    assert len(rotated_inputs(made, CPU, hot=True)) == 1
    assert len(rotated_inputs(prepared(lambda one: one, size=10**6), CPU, hot=False)) == 2
    monkeypatch.setattr(operation_timing, "free_host_bytes", lambda: 2000)
    assert len(rotated_inputs(made, CPU, hot=False)) == 6  # a quarter of what is free beside the first
    monkeypatch.setattr(operation_timing, "cache_bytes", lambda device: 10**12)
    monkeypatch.setattr(operation_timing, "free_host_bytes", lambda: 10**12)
    assert len(rotated_inputs(made, CPU, hot=False)) == 4096


@pytest.mark.parametrize(("layout", "num_bytes"), [
    ("strided", 4 * 12), ("coo", 4 * 2 + 8 * 4), ("csr", 4 * 2 + 8 * (2 + 4)), ("csc", 4 * 2 + 8 * (2 + 5)),
])
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_bytes_of_a_tensor_are_its_numbers_and_their_places(layout: str, num_bytes: int) -> None:
    dense = torch.zeros(3, 4)
    dense[0, 1] = dense[2, 3] = 1.0
    tensor = {"strided": lambda: dense, "coo": dense.to_sparse, "csr": dense.to_sparse_csr,
              "csc": dense.to_sparse_csc}[layout]()
    assert tensor_bytes(tensor) == num_bytes


def test_an_error_is_relative_to_the_largest_number() -> None:
    values = torch.tensor([1.0, -8.0, 0.0])
    made = Prepared(inputs=lambda: [values], call=lambda one: one + torch.tensor([0.0, 2.0, 1.0]),
                    reference=lambda one: one.double(), compared=lambda result: result, tolerance=0.0)
    assert result_error(made, made.inputs()) == 0.25


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_result_that_is_no_number_is_infinitely_wrong(wrong: float) -> None:
    made = prepared(lambda one: torch.full_like(one, wrong))
    assert result_error(made, made.inputs()) == math.inf


def test_a_reference_sees_inputs_as_they_were_before_the_call() -> None:
    made = prepared(lambda one: one.mul_(1.0).add_(0.0))
    assert result_error(made, made.inputs()) == 0.0
    made = prepared(lambda one: one.add_(1.0))
    assert result_error(made, made.inputs()) == 1.0


@pytest.mark.parametrize(("sizes", "near_bytes"), [([], 0), ([32], 0), ([32, 512], 32), ([32, 512, 4096], 512)])
def test_near_caches_are_those_before_the_last(
        monkeypatch: pytest.MonkeyPatch, sizes: list[int], near_bytes: int) -> None:
    """Each of two threads has its own, but the last."""
    levels = [CacheLevel(f"L{number}", size, 1 if size == 4096 else 2) for number, size in enumerate(sizes, 1)]
    monkeypatch.setattr(operation_timing, "cache_levels", lambda num_threads: levels)
    assert near_cache_bytes(CPU) == 2 * near_bytes
    assert near_cache_bytes(torch.device("cuda")) == 0


@pytest.mark.skipif(cache_bytes(CPU) < 4 * 2**20, reason="a cache that holds the problem is needed")
def test_what_fits_the_cache_is_slower_when_inputs_are_rotated() -> None:
    """A product by a vector reads a matrix once: from memory, or from the cache where it was just before."""
    problem = parse_problem("gemm:512x1x512")
    made = all_kinds()["gemm"].prepare(problem, "forward", "fp32", CPU)
    cold, hot = (rotated_inputs(made, CPU, hot=one) for one in (False, True))
    assert len(cold) > len(hot) == 1
    rule = StopRule(precision_target_frac=0.0, max_iterations=10, max_seconds=2.0)
    ratios = []
    for _ in range(5):
        cold_s, hot_s = (median(row["host_s"] for row in time_direction(made, inputs, CPU, rule, untold).rows)
                         for inputs in (cold, hot))
        ratios.append(cold_s / hot_s)
    assert median(ratios) > 1.2


@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow_variants
@pytest.mark.parametrize(("text", "statement"), [
    ("gemm:512x32x512", "torch.mm(*inputs)"),
    ("gemm:32x32x32", "torch.mm(*inputs)"),
    ("convolution:2x16x28x28:16x3x3:p1", "torch.nn.functional.conv2d(*inputs, padding=1)"),
])
def test_times_are_those_of_torch_utils_benchmark(text: str, statement: str) -> None:
    problem = parse_problem(text)
    prepared = all_kinds()[problem.operation].prepare(problem, "forward", "fp32", CPU)
    rotated = rotated_inputs(prepared, CPU, hot=True)
    timer = Timer(statement, globals={"torch": torch, "inputs": rotated[0]}, num_threads=1)
    ours, theirs = [], []
    for _ in range(25):
        rows = time_direction(prepared, rotated, CPU, RULE, lambda number, median_s: None).rows
        ours += [row["host_s"] for row in rows]
        theirs += [timer.timeit(rows[0]["num_calls"]).mean for _ in range(len(rows))]
    # Other work on the machine makes either longer, and none shorter: much more than the 3 % that are meant.
    assert 0.8 < min(ours) / min(theirs) < 1.25
