"""Inference on a data set: latency of each batch, in order, and the total time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from charact.core.statistics import mean_interval_frac
from charact.core.timeline import Iteration, total_s, with_rest
from charact.execution.batches import Batches
from charact.execution.loop import Loop
from charact.measure.passes.phase_timer import phases_for
from charact.record.schema import Rows
from charact.workload.metrics import Metric


@dataclass(frozen=True)
class InferenceTimes:
    """Times of an inference on a data set: loader start, each batch by phase, and wall time on the host's clock."""

    loading_s: float
    batches: list[Iteration]
    wall_s: float

    def stage_rows(self, num_samples: int) -> Rows:
        """Return rows of the table `stages`; host time outside of the batches' phases is `other`."""
        host_s, device_s = total_s(self.batches)
        interval_frac = mean_interval_frac([batch.wall_s for batch in self.batches])
        host_s = with_rest(host_s | {"data": host_s.get("data", 0.0) + self.loading_s}, self.wall_s)
        return [
            {"stage": "prediction", "number": 1, "phase": phase, "host_s": spent_s, "device_s": device_s.get(phase),
             "num_iterations": len(self.batches), "num_samples": num_samples, "interval_frac": interval_frac}
            for phase, spent_s in host_s.items()
        ]


def run_inference(loop: Loop, batches: Batches, num_batches: int, metrics: Sequence[Metric],
                  on_iteration: Callable[[int, float], None]) -> InferenceTimes:
    """Run inference on batches in order, from the first batch to the end of the last one on the device.

    Starting the loader counts as `data` of the stage; metrics and the final synchronization count as its `other`. None
    of them is part of a batch's latency. The first batch includes the initialization of the device.

    Args:
        loop: the case with its model.
        batches: its data; the last batch may be smaller.
        num_batches: number of batches.
        metrics: updated with each batch's outputs; the caller reads them.
        on_iteration: called with (batches so far, mean seconds) between batches.
    """
    phases = phases_for(loop.case.device)
    measured: list[Iteration] = []
    begun = perf_counter()
    loop.feed(batches.epoch(loop.case.data.seed))
    loading_s = perf_counter() - begun
    for number in range(1, num_batches + 1):
        with phases:
            step = loop.iteration(phases)
        for metric in metrics:
            metric.update(step.outputs, step.batch)
        del step  # so that only one batch is in memory while the next one is fetched
        measured += phases.take()
        on_iteration(number, (perf_counter() - begun) / number)
    synchronize(loop.case.device)
    wall_s = perf_counter() - begun
    return InferenceTimes(loading_s, measured + phases.take(wait=True), wall_s)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
