"""Counters that the driver may keep for administrators, on a device: FLOP of a product of known size, and phases."""

from typing import Any

import pytest
import torch

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.counters import ncu, pm
from charact.measure.counters._support.protocol import ADMIN_ONLY, BUSY, Found, UnavailableError
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

FEATURES, WIDTH, BATCH = 512, 1024, 4096
CUDA = torch.device("cuda", 0)


def take(source: Any, case: Case) -> Found:
    refusal = source.available()
    if refusal is not None:
        pytest.skip(f"{refusal.reason}: {refusal.remedy}")
    loop = Loop(case)
    try:
        found: Found = source.take(loop)
        return found
    except UnavailableError as refused:
        if refused.unavailable in (ADMIN_ONLY, BUSY):
            pytest.skip(f"{refused.unavailable.reason}: {refused.unavailable.remedy}")
        raise
    finally:
        loop.close()


def product(precision: str) -> Case:
    workload = own_model("support.rerun_nets:Wide", "", parse_input_spec("S"), "support.rerun_nets:squared", "SGD", 0.1)
    return Case(workload.prepare(), FEATURES, BATCH, "train", precision, CUDA, DataRequest())


def counter(found: Found, name: str, phase: str | None) -> float:
    [value] = [row["value"] for row in found.rows if row["counter"] == name and row["phase"] == phase
               and row.get("kernel") is None and row.get("time_s") is None]
    return float(value)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_ncu_counts_the_flop_of_a_product(precision: str) -> None:
    found = take(ncu.SOURCE, product(precision))
    assert counter(found, "executed_flop", "forward") == pytest.approx(2 * BATCH * FEATURES * WIDTH, rel=0.05)
    assert counter(found, "executed_flop", "backward") == pytest.approx(2 * BATCH * FEATURES * WIDTH, rel=0.05)
    assert {row["phase"] for row in found.rows} >= {"forward", "loss", "backward", "update"}
    for row in found.rows:
        assert row["value"] >= 0, row
        if row["counter"].endswith("_frac"):
            assert row["value"] <= 1.02, row
    assert not found.missing


def test_pm_attributes_samples_to_phases() -> None:
    case = Case(find_workload("resnet50").prepare(), 224, 16, "train", "fp32", CUDA, DataRequest())
    found = take(pm.SOURCE, case)
    spans = found.facts["spans"]
    iteration_s = (spans[-1][1] - spans[0][0]) / found.facts["num_iterations"]
    assert found.facts["clock_error_s"] < iteration_s / 20
    assert {row["phase"] for row in found.rows} >= {None, "forward", "backward", "update"}
    assert 0 < counter(found, "warp_occupancy_frac", "forward") <= 1
    weights_bytes = 4 * sum(one.numel() for one in case.workload.model(case.dataset()).parameters())
    # Fused, an update reads weights, gradients and momentum, and writes weights and momentum: 5 times the weights. One
    # kernel for each of its terms reads and writes 8 times as much, or 11 with weight decay, less what caches hold.
    assert 4.5 <= counter(found, "dram_bytes", "update") / weights_bytes <= 11.5
    assert counter(found, "dram_bytes", None) > counter(found, "dram_bytes", "forward") > weights_bytes
