"""A prediction: batches in order from first to last, each one's latency and the time of all."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from charact.execution.batches import Batches
from charact.execution.loop import Loop
from charact.measure.passes.phase_timer import phases_for
from charact.record.reader import Rows
from charact.workload.metrics import Metric


@dataclass(frozen=True)
class Prediction:
    """Times of a prediction: to start the loader, of each batch by phase, and of all on the host's clock."""

    loading_s: float
    batches: list[dict[str, tuple[float, float | None]]]
    wall_s: float

    def iteration_rows(self) -> Rows:
        """Rows of the table `iterations`."""
        return [
            {"iteration": number, "phase": phase, "host_s": host_s, "device_s": device_s}
            for number, durations in enumerate(self.batches) for phase, (host_s, device_s) in durations.items()
        ]

    def stage_rows(self, num_samples: int) -> Rows:
        """Rows of the table `stages`: what is left beside the batches' phases is `other` on the host's clock."""
        host_s: dict[str, float] = defaultdict(float, data=self.loading_s)
        device_s: dict[str, float | None] = {}
        for durations in self.batches:
            for phase, (host, device) in durations.items():
                host_s[phase] += host
                device_s[phase] = None if device is None else (device_s.get(phase) or 0.0) + device
        host_s["other"] += self.wall_s - sum(host_s.values())
        return [
            {"stage": "prediction", "number": 1, "phase": phase, "host_s": host_s[phase], "device_s": device_s[phase],
             "num_iterations": len(self.batches), "num_samples": num_samples}
            for phase in host_s
        ]


def predict(loop: Loop, batches: Batches, num_batches: int, metrics: Sequence[Metric],
            on_iteration: Callable[[int, float], None]) -> Prediction:
    """Predict batches in order, from the first, whose first touch of the device counts, to the end on the device.

    Starting the loader counts as data of the whole, metrics and the wait for the device as its `other`: none of them
    is in a batch's latency. Metrics are read by the caller, afterwards.

    Args:
        loop: the case with its model.
        batches: its data; the last batch may be smaller.
        num_batches: how many of them.
        metrics: what is told of each batch's outputs.
        on_iteration: told (batches so far, mean seconds) between batches.
    """
    phases = phases_for(loop.case.device)
    measured: list[dict[str, tuple[float, float | None]]] = []
    begun = perf_counter()
    loop.feed(batches.epoch(loop.case.data.seed))
    loading_s = perf_counter() - begun
    for number in range(1, num_batches + 1):
        with phases:
            step = loop.iteration(phases)
        for metric in metrics:
            metric.update(step.outputs, step.batch)
        del step  # else two batches would be held while the next one is fetched
        measured += phases.take()
        on_iteration(number, (perf_counter() - begun) / number)
    wait_for(loop.case.device)
    wall_s = perf_counter() - begun
    return Prediction(loading_s, measured + phases.take(wait=True), wall_s)


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
