"""Memory inside of operators: measured alone, cached, or modelled as a range that holds."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.predictions import CPU, case_of, measured_peak, predicted
from torch import nn

from charact.core.errors import UserError
from charact.core.files import user_cache
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate import operator_memory
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.inner_memory import measured_inner, modelled
from charact.measure.memory_estimate.operator_memory import (
    OperatorCall,
    OperatorMemory,
    call_of,
    described,
    surroundings,
)
from charact.measure.memory_estimate.replay import HostAllocator, replay
from charact.measure.memory_estimate.target_devices import this_device

aten = torch.ops.aten


def trace_of(run: Callable[[], Any]) -> AllocationTrace:
    """The operators that a function calls."""
    recorder = Recorder(RunningLayer(nn.Module()))
    recorder.begin()
    with recorder:
        run()
    return recorder.ended()


def alone(call: OperatorCall, memory: OperatorMemory | None = None) -> int:
    """Peak of what a call allocates (bytes)."""
    memory = memory or OperatorMemory()
    memory.measure([call], lambda _: 0)
    return memory.cached([call])[call].peak_bytes


def sort_of(num_elements: int) -> OperatorCall:
    call = call_of(aten.sort.default, (torch.zeros(num_elements),), {})
    assert call is not None
    return call


class TestCalls:
    """Which operators may allocate inside, and when two calls are the same."""

    @pytest.mark.parametrize(("operator", "args", "output_bytes"), [
        (aten.relu.default, [torch.zeros(4)], 16), (aten.add.Tensor, [torch.zeros(4), torch.zeros(4)], 16),
        (aten.view.default, [torch.zeros(4), [2, 2]], 0), (aten.mm.default, [torch.zeros(4, 5), torch.zeros(5, 6)], 96),
        (aten.mm.default, [torch.zeros(4, 5), torch.zeros(6, 5).t()], 96),
        (aten.bmm.default, [torch.zeros(2, 4, 5), torch.zeros(2, 6, 5).mT], 192),
    ])  # fmt: skip
    def test_these_allocate_only_their_outputs(self, operator: Any, args: list[Any], output_bytes: int) -> None:
        assert call_of(operator, tuple(args), {}) is None
        call = described(operator, tuple(args), {})
        assert call is not None
        assert alone(call) == output_bytes

    @pytest.mark.parametrize(("operator", "args", "output_bytes"), [
        (aten.add.Tensor, [torch.zeros(4096), torch.zeros(4096, dtype=torch.bfloat16)], 4 * 4096),
        (aten.mm.default, [torch.zeros(64, 128)[:, ::2], torch.zeros(64, 64)], 4 * 64 * 64),
        (aten.sum.default, [torch.zeros(2**20)], 4),
    ])  # fmt: skip
    def test_these_allocate_more(self, operator: Any, args: list[Any], output_bytes: int) -> None:
        call = call_of(operator, tuple(args), {})
        assert call is not None
        assert alone(call) >= output_bytes

    def test_a_call_is_its_layouts_and_values(self) -> None:
        def sum_of(x: torch.Tensor, axis: int) -> str:
            call = call_of(aten.sum.dim_IntList, (x, [axis]), {})
            assert call is not None
            return call.text

        x = torch.zeros(4, 6)
        assert sum_of(x, 0) == sum_of(torch.ones(4, 6), 0)
        assert len({sum_of(x, 0), sum_of(x, 1), sum_of(x.double(), 0), sum_of(torch.zeros(6, 4).t(), 0)}) == 4
        with torch.no_grad():
            without = sum_of(x, 0)
        assert without != sum_of(x, 0)

    def test_sparse_tensors_are_not_described(self) -> None:
        assert call_of(aten.mm.default, (torch.eye(3).to_sparse(), torch.eye(3)), {}) is None


@pytest.mark.parametrize("make", [
    lambda: nn.Conv2d(3, 8, 3)(torch.zeros(0, 3, 8, 8)),
    lambda: torch.conv_tbc(torch.zeros(9, 2, 4), torch.zeros(3, 4, 5), torch.zeros(5), 1),
], ids=["empty batch", "time, batch, channels"])  # fmt: skip
def test_unusual_convolutions(make: Callable[[], Any]) -> None:
    inner, facts = measured_inner(trace_of(make), OperatorMemory())
    assert facts.num_modelled == 0
    assert not inner.uncertain


class TestSettings:
    """Settings of the program by which libraries choose."""

    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def test_a_default_device_does_not_change_the_measurement(self) -> None:
        call = sort_of(500)
        with torch.device("meta"):
            meta = alone(call)
        assert meta == alone(call) > 0

    def test_products_with_fewer_digits_may_copy(self) -> None:
        matrices = torch.zeros(64, 64), torch.zeros(64, 64)
        before = surroundings()
        torch.set_float32_matmul_precision("medium")
        try:
            assert call_of(aten.mm.default, matrices, {}) is not None
            assert surroundings() != before
        finally:
            torch.set_float32_matmul_precision("highest")
        assert call_of(aten.mm.default, matrices, {}) is None

    def test_what_did_not_fit_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        memory, call = OperatorMemory(), sort_of(500)
        with monkeypatch.context() as patch:
            patch.setattr(operator_memory, "free_host_bytes", lambda: 1000)
            memory.measure([call], lambda _: 0)
        assert "half of the free memory is" in (memory.reason(call) or "")
        assert alone(call, memory) > 0
        assert memory.reason(call) is None


def test_a_known_amount_inside() -> None:
    call = call_of(aten.mm.default, (torch.zeros(64, 256)[:, ::2], torch.zeros(128, 32)), {})
    assert call is not None
    # BLAS needs rows without gaps, so the first matrix is copied.
    assert alone(call) == 4 * (64 * 128 + 64 * 32)


class TestCache:
    """What is measured once is not run again, in this process or the next."""

    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    @pytest.fixture
    def runs(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The numbers of calls that were run together."""
        counts: list[int] = []
        run = operator_memory._run

        def counted(calls: Any, reasons: Any) -> Any:
            counts.append(len(calls))
            return run(calls, reasons)

        monkeypatch.setattr(operator_memory, "_run", counted)
        return counts

    def test_a_call_runs_once(self, runs: list[int]) -> None:
        memory = OperatorMemory()
        assert alone(sort_of(500), memory) == alone(sort_of(500), memory) == alone(sort_of(500)) > 0
        assert runs == [1]

    def test_other_threads_are_measured_anew(self, runs: list[int]) -> None:
        memory, before = OperatorMemory(), torch.get_num_threads()
        alone(sort_of(500), memory)
        torch.set_num_threads(before + 1)
        try:
            alone(sort_of(500), memory)
        finally:
            torch.set_num_threads(before)
        alone(sort_of(500), memory)
        assert runs == [1, 1]

    @pytest.mark.parametrize("damage", [
        lambda path: path.write_bytes(b"no database" * 500), lambda path: path.write_bytes(b""),
        lambda path: (path.unlink(), path.mkdir()),
    ])  # fmt: skip
    def test_a_damaged_cache_is_as_none(self, runs: list[int], damage: Callable[[Path], Any]) -> None:
        first = alone(sort_of(500))
        (path,) = (user_cache() / "operators").iterdir()
        damage(path)
        assert alone(sort_of(500)) == alone(sort_of(500)) == first
        assert len(runs) >= 2

    def test_a_cache_that_cannot_be_written_is_as_none(self, tmp_path: Path) -> None:
        (tmp_path / "charact").write_text("in the way")
        assert alone(sort_of(500)) > 0

    def test_surroundings_name_all_that_matters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)  # the tests may run with it
        before = json.dumps(operator_memory.surroundings())
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
        assert json.dumps(operator_memory.surroundings()) != before


class TestWhatCannotRunAlone:
    """It is modelled, with its reason and a range that holds."""

    def test_a_call_that_needs_values(self) -> None:
        inner, facts = measured_inner(trace_of(lambda: torch.multinomial(torch.ones(500_000), 3)), OperatorMemory())
        assert inner.uncertain == {"aten::multinomial"}
        assert facts.num_modelled == 1
        assert str(facts.reason).startswith("aten.multinomial.default alone fails: ")
        assert max(inner.low.workspaces) == 0 < max(inner.high.workspaces)

    def test_a_kernel_that_this_cpu_lacks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

        def fail(*_: Any) -> Any:
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")

        monkeypatch.setattr(operator_memory, "_run_marked", fail)
        call = call_of(aten.sort.default, (torch.zeros(4, dtype=torch.bfloat16),), {})
        assert call is not None
        with pytest.raises(UserError, match=r"this CPU cannot run an LSTM in bf16 .*: use --precision fp32"):
            OperatorMemory().measure([call], lambda _: 0)

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("case", [
        case_of("resnet18", 64, 4), case_of("resnet18", 64, 4, "infer"), case_of("rnn_lm", 20, 8),
        case_of("model_a", 32, 4), case_of("xception", 71, 2, "infer"),
    ], ids=lambda case: case.id)  # fmt: skip
    def test_calls_larger_than_the_free_memory(self, monkeypatch: pytest.MonkeyPatch, case: Any) -> None:
        measured = measured_peak(case)
        monkeypatch.setattr(operator_memory, "free_host_bytes", lambda: 2 * 2**20)
        monkeypatch.setattr("charact.measure.memory_estimate.estimator._OPERATORS", OperatorMemory())
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        estimate = Estimator(this_device(CPU)).estimate(case)
        facts = estimate.facts.workspaces
        assert facts.method == "modelled"
        assert " alone needs about " in facts.reason
        assert estimate.low_bytes <= measured <= estimate.high_bytes
        assert estimate.facts.uncertain


@pytest.mark.slow_variants
@pytest.mark.parametrize("case", [case_of("resnet18", 64, 4), case_of("googlenet", 64, 2), case_of("seq2seq", 12, 3)],
                         ids=lambda case: case.id)
def test_operators_that_are_not_measured_do_not_decide_a_peak(case: Any) -> None:
    trace = Estimator(this_device(CPU)).trace(case)
    memory = OperatorMemory()
    few, _ = measured_inner(trace, memory)
    memory.measure(list({op.call for op in trace.ops if op.call is not None}), lambda _: 0)
    every, _ = measured_inner(trace, memory)
    peaks = [{phase: peak.total_bytes for phase, peak in
              replay(trace, HostAllocator(), inner.likely.workspaces, inner.likely.sizes).curve.phase_peaks().items()}
             for inner in (few, every)]
    assert peaks[0] == pytest.approx(peaks[1], rel=2e-4)


HARD = [
    (lambda: nn.Conv2d(64, 1, 1, stride=3), (8, 64, 28, 28)), (lambda: nn.Conv2d(3, 16, 7, padding=3), (2, 3, 33, 33)),
    (lambda: nn.Conv2d(64, 128, 5, groups=64, padding=2), (3, 64, 28, 28)),
    (lambda: nn.Conv2d(16, 16, 5, dilation=3), (2, 16, 33, 33)), (lambda: nn.Conv1d(1, 10, 1, stride=3), (3, 1, 32)),
    (lambda: nn.Conv3d(16, 8, 5, padding=2), (2, 16, 8, 8, 8)), (lambda: nn.GroupNorm(4, 16), (8, 16, 14, 14)),
    (lambda: nn.ConvTranspose2d(64, 64, 1, stride=4, groups=2), (2, 64, 33, 33)),
    (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (8, 16, 14, 14)), (lambda: nn.Linear(64, 64), (16, 64)),
]
"""Layers that come close to the upper end of the range on some processor."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", range(len(HARD)))
def test_the_modelled_range_holds(number: int, dtype: torch.dtype) -> None:
    make, shape = HARD[number]
    layer, x = make().to(dtype), torch.zeros(shape, dtype=dtype, requires_grad=True)
    trace = trace_of(lambda: layer(x).sum().backward())
    ops, memory = {op.call: op for op in trace.ops if op.call}, OperatorMemory()
    sizes = [block.num_bytes for block in trace.blocks]
    memory.measure(list(ops), lambda _: 0)
    for call, found in memory.cached(ops).items():
        inside = found.peak_bytes - sum(sizes[made] for made in ops[call].made)
        low, _, high = modelled(ops[call], sizes)
        assert low <= max(0, inside) <= high


def test_an_active_profiler_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with torch.profiler.profile() as profiler, pytest.raises(UserError, match="estimate memory outside of it"):
        OperatorMemory().measure([sort_of(500)], lambda _: 0)
    assert profiler.events() is not None


def test_nothing_of_a_measurement_is_left() -> None:
    before = torch.get_rng_state()
    memory = OperatorMemory()
    memory.measure([sort_of(10**6)], lambda _: 0)
    gc.collect()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert predicted(case_of("mlp", 28, 8)).peak_bytes == measured_peak(case_of("mlp", 28, 8))
