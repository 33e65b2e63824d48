"""Bricks on a CUDA device: times on the device's clock, training and updates."""

from pathlib import Path

import pytest
import torch
from support.hand_made_bricks import a_gradient_sum, a_suite, an_update, product
from support.notes import Notes

from charact import load_run
from charact.bricks.timing.suite_run import SuiteRun
from charact.execution.interrupt import Interrupt
from charact.measure.microbench.call_timer import clock_for
from charact.measure.passes.timing import StopRule
from charact.measure.passes.warm_device import warm_device
from charact.record.reader import Run
from charact.record.writer import RunWriter

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROWS, WIDTH = 2048, 1024


def run(tmp_path: Path, mode: str) -> Run:
    bricks = [product(ROWS, WIDTH, mode=mode, context_bytes=2**30)]
    if mode == "train":
        bricks += [an_update(WIDTH, WIDTH, optimizer="Adam", lr=0.1), a_gradient_sum(ROWS, WIDTH)]
    writer = RunWriter(tmp_path / "runs", "test", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        SuiteRun(a_suite(tmp_path / "suite", *bricks, mode=mode), mode, "fp32", torch.device("cuda", 0),
                 StopRule(0.0, 8, 30.0), writer, Notes(), interrupt).run()
    writer.close("complete")
    return load_run(writer.publish())


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_times_are_the_devices(tmp_path: Path, mode: str) -> None:
    record = run(tmp_path, mode)
    assert set(record.bricks["status"]) == {"ok"}
    assert (record.brick_times["device_s"] > 0).all()


def test_a_kernel_takes_as_long_on_the_devices_clock_whatever_was_queued() -> None:
    clock, cycles = clock_for(torch.device("cuda", 0)), 20_000_000
    warm_device(torch.device("cuda", 0))
    short, long = (min(clock.time(torch.cuda._sleep, factor * cycles)[1] or 0.0 for _ in range(5)) for factor in (1, 4))
    assert long / short == pytest.approx(4, rel=0.03)
