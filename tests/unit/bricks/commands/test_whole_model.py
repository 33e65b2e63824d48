"""Timing whole models as their bricks are timed: phases, the batch, and that nothing is loaded beside."""

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.small import TwoLayers, small_case
from torch import Tensor

from charact.bricks.capture.recording import Source
from charact.bricks.commands._models import time_end_to_end
from charact.measure.passes.timing import StopRule

pytestmark = pytest.mark.clock

RULE = StopRule(precision_target_frac=0.0, max_iterations=7, max_seconds=5.0)


@dataclass(kw_only=True)
class Slow(TwoLayers):
    """Takes 10 ms in forward and 5 ms in the loss, and keeps which batches it had."""

    def forward(self, model: torch.nn.Module, batch: Any) -> Tensor:
        BATCHES.append(batch[0].data_ptr())
        time.sleep(0.010)
        return super().forward(model, batch)

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        time.sleep(0.005)
        return super().loss(outputs, batch)


BATCHES: list[int] = []


@pytest.mark.slow_variants
@pytest.mark.parametrize(("mode", "phases"), [
    ("infer", ["forward", "other"]), ("train", ["forward", "loss", "backward", "update", "other"]),
])
def test_iterations_have_the_phases_of_bricks(mode: str, phases: list[str]) -> None:
    BATCHES.clear()
    timing = time_end_to_end(Source(small_case(mode, workload=Slow()), "slow"), RULE)
    assert [row["phase"] for row in timing.rows if row["iteration"] == 3] == phases
    assert {row["iteration"] for row in timing.rows} == set(range(7))
    assert len(set(BATCHES)) == 1
    assert min(row["host_s"] for row in timing.rows if row["phase"] == "forward") >= 0.010
    assert all(row["host_s"] >= 0.005 for row in timing.rows if row["phase"] == "loss")


@pytest.mark.slow
def test_phases_sum_to_the_wall_time() -> None:
    timing = time_end_to_end(Source(small_case("train"), "two_layers"), RULE)
    for iteration, wall_s in enumerate(timing.wall_s):
        rows = [row for row in timing.rows if row["iteration"] == iteration]
        assert sum(row["host_s"] for row in rows) == pytest.approx(wall_s)
        assert all(row["host_s"] >= 0 and row["device_s"] is None for row in rows)
    assert timing.facts.ended_by == "max_iterations"


@pytest.mark.slow
def test_how_long_the_thread_had_a_core_is_told() -> None:
    busy = time_end_to_end(Source(small_case("infer"), "two_layers"), RULE)
    asleep = time_end_to_end(Source(small_case("infer", workload=Slow()), "slow"), RULE)
    assert 0 < asleep.facts.on_core_frac < 0.5
    assert asleep.facts.on_core_frac < busy.facts.on_core_frac <= 1.01
