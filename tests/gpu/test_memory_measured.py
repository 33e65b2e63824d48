"""Memory as it is measured on a CUDA device, against the allocator's own statistics, and under a limit."""

from pathlib import Path

import pytest
import torch
from support.notes import Notes

from charact import load_run
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.measure.memory_estimate.target_devices import this_device
from charact.measure.memory_sweep.measured_case import MemoryCase
from charact.measure.memory_sweep.sweep import MemoryPlan, run_memory_cases
from charact.record.writer import RunWriter
from charact.workload.registry import find_workload

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(("name", "size", "batch_size"), [("resnet18", 64, 16), ("rnn_lm", 35, 20)])
def test_the_composition_is_what_the_allocator_counts(name: str, size: int, batch_size: int, mode: str) -> None:
    case = Case(find_workload(name).prepare(), size, batch_size, mode, "fp32", DEVICE, DataRequest())
    rows, facts = MemoryCase(case, None).measure()
    held = {row["category"]: row["bytes"] for row in rows if row["kind"] == "peak"}
    allocated, reserved = facts.allocator_peak_bytes or 0, facts.reserved_peak_bytes or 0
    assert sum(held.values()) == facts.peak_bytes == pytest.approx(allocated, rel=0.01)
    assert reserved >= allocated > 0
    assert held["unknown"] <= 0.02 * sum(held.values())
    assert max(facts.phase_peak_bytes.values()) == pytest.approx(facts.peak_bytes, rel=0.01)


def test_running_out_tells_what_was_asked_and_held(tmp_path: Path) -> None:
    case = Case(find_workload("resnet18").prepare(), 224, 256, "train", "fp32", DEVICE, DataRequest())
    writer = RunWriter(tmp_path, "oom", {"machine": {}, "software": {}, "options": {}})
    limit_bytes = 4 * 2**30
    plan = MemoryPlan(this_device(DEVICE), predict=False, limit_bytes=limit_bytes)
    with Interrupt() as interrupt:
        run_memory_cases([case], plan, writer, Notes(), interrupt)
    writer.close("complete")
    (entry,) = load_run(writer.publish()).manifest["cases"]
    assert entry["status"] == "oom"
    told = entry["out_of_memory"]
    assert told["requested_bytes"] > told["free_bytes"] >= 0
    assert told["limit_bytes"] == limit_bytes
    assert told["phase"] in ("forward", "backward")
    assert 0.5 * limit_bytes < sum(told["composition"].values()) < limit_bytes
    assert told["fits_reason"].startswith("not searched: ")
    assert torch.cuda.get_per_process_memory_fraction(DEVICE) == 1.0
