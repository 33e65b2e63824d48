"""Measuring a case under a limit: what is left of it where it runs out."""

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.small import WIDTH, TwoLayers, small_case
from torch import Tensor, nn

from charact.execution.memory_limit import memory_limit
from charact.measure.memory_sweep.measured_case import MemoryCase
from charact.measure.passes.resident_memory import reset_resident_peak, resident_bytes, resident_peak_bytes

WEIGHTS = 4 * (512 * WIDTH + WIDTH * 10)
MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's data")


@dataclass(kw_only=True)
class Hungry(TwoLayers):
    """Keeps a block in the forward pass, then asks for one that there is no room for."""

    kept_bytes: int = 24 * MIB
    asked_bytes: int = 128 * MIB

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        kept = torch.empty(self.kept_bytes, dtype=torch.uint8)
        torch.empty(self.asked_bytes, dtype=torch.uint8)
        assert kept.numel()
        return outputs


def test_each_phase_has_the_same_peak_without_operators() -> None:
    rows, facts = MemoryCase(small_case(), None).measure()
    peaks: dict[str, float] = {}
    for row in rows:
        if row["kind"] == "phase_peak":
            peaks[row["phase"]] = peaks.get(row["phase"], 0) + row["bytes"]
    assert facts.phase_peak_bytes == peaks
    assert facts.peak_bytes == max(peaks.values())


@pytest.mark.slow
@pytest.mark.fresh_process
@linux
def test_the_process_peak_is_that_of_the_case_alone() -> None:
    held = torch.ones(400 * MIB, dtype=torch.uint8)
    del held
    _, facts = MemoryCase(small_case(), None).measure()
    assert facts.process_before_bytes <= facts.process_peak_bytes < facts.process_before_bytes + 200 * MIB


@pytest.mark.fresh_process
@linux
@pytest.mark.slow
def test_the_resident_peak_begins_anew() -> None:
    held = torch.ones(300 * MIB, dtype=torch.uint8)
    high = resident_peak_bytes()
    del held
    assert reset_resident_peak()
    assert resident_peak_bytes() == pytest.approx(resident_bytes(), abs=50 * MIB)
    assert resident_peak_bytes() < high - 200 * MIB


@pytest.mark.fresh_process
@linux
@pytest.mark.slow
def test_a_shortage_tells_what_was_asked_and_free_and_held() -> None:
    measured = MemoryCase(small_case(workload=Hungry()), 100 * MIB)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        measured.measure()
    shortage = measured.shortage
    assert shortage is not None
    assert shortage.requested_bytes == 128 * MIB
    assert shortage.limit_bytes == 100 * MIB
    assert shortage.phase == "forward"
    held = shortage.composition
    assert held["weights"] == WEIGHTS
    assert held["activations"] == pytest.approx(24 * MIB, rel=0.02)  # what the layers keep is small
    assert held["input"] == 4 * 64 * 512 + 8 * 64
    assert sum(held.values()) + shortage.free_bytes == pytest.approx(100 * MIB, rel=0.1)


@linux
def test_what_fits_runs_under_the_limit() -> None:
    measured = MemoryCase(small_case(workload=Hungry(asked_bytes=32 * MIB)), 100 * MIB)
    _, facts = measured.measure()
    assert measured.shortage is None
    assert 56 * MIB <= facts.peak_bytes <= 60 * MIB


@pytest.mark.fresh_process
@linux
@pytest.mark.slow
def test_a_model_too_large_for_the_limit_leaves_no_composition() -> None:
    measured = MemoryCase(small_case(workload=TwoLayers(default_input_size=100_000)), 20 * MIB)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        measured.measure()
    assert measured.shortage is not None
    assert measured.shortage.requested_bytes == 4 * 100_000 * WIDTH
    assert measured.shortage.phase is None
    assert measured.shortage.composition is None


def test_an_error_of_the_model_is_no_shortage() -> None:
    measured = MemoryCase(small_case(workload=TwoLayers(fail_in="forward")), None)
    with pytest.raises(ValueError, match="the model"):
        measured.measure()
    assert measured.shortage is None


@pytest.mark.slow
@pytest.mark.fresh_process
@linux
def test_a_limit_ends_with_its_block() -> None:
    with memory_limit(torch.device("cpu"), 50 * MIB) as limit:
        assert limit.limit_bytes == 50 * MIB
        assert limit.free_bytes() == pytest.approx(50 * MIB, abs=3 * MIB)
        held = torch.empty(30 * MIB, dtype=torch.uint8)
        assert limit.free_bytes() == pytest.approx(20 * MIB, abs=3 * MIB)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(30 * MIB, dtype=torch.uint8)
        del held
    assert torch.empty(60 * MIB, dtype=torch.uint8).numel()
