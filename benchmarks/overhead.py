"""What charact's passes cost: iteration time under a pass over that of a bare training loop, interleaved.

Run `python benchmarks/overhead.py [--pairs-frac 0.1]`. The bare loop is written out below, without anything of
charact's: the ratio holds the marks and all else that the timing pass adds to an iteration.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from conditions import conditions
from interleaved import compare, timed
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.phase_timer import HostPhases
from charact.workload.image_classification import ImageClassification
from charact.workload.registry import find_workload

NUM_WARMUP = 5


@dataclass(kw_only=True)
class MLP(ImageClassification):
    """Two small layers: the shortest iteration anyone would profile, and so the worst case."""

    name: str = "mlp"
    source: str = "worst case of an overhead"
    default_batch_size: int = 16
    smallest_input_size: int = 1

    def model(self, dataset: Any) -> nn.Module:
        """3 × 8 × 8 values to 128 to the classes."""
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, dataset.num_classes))


def bare_iteration(loop: Loop) -> Callable[[], None]:
    """One iteration as a user would write it, on the model and data of the loop."""
    model, case, (optimizer,) = loop.model, loop.case, loop.optimizers
    loader: Any = DataLoader(loop.dataset, batch_size=case.batch_size, shuffle=True, drop_last=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    endless = batches()

    def iteration() -> None:
        images, labels = next(endless)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return iteration


def report(name: str, loop: Loop, num_pairs: int) -> None:
    """Print the ratios of one network."""
    phases = HostPhases()

    def in_timing_pass() -> None:
        with phases:
            loop.iteration(phases)

    bare, timing = timed(bare_iteration(loop)), timed(in_timing_pass)
    for _ in range(NUM_WARMUP):
        bare()
        timing()

    def operators() -> float:  # the profiler's own start and stop lie outside of an iteration
        with layer_marks(loop.model), profile(activities=[ProfilerActivity.CPU], record_shapes=True):
            seconds = timed(lambda: loop.iteration(phase_mark))()
        return seconds

    print(name)
    print(f"  bare loop over itself (noise)  {compare(bare, bare, num_pairs)}", flush=True)
    print(f"  timing pass                    {compare(timing, bare, num_pairs)}", flush=True)
    print(f"  operator pass                  {compare(operators, bare, max(6, num_pairs // 10))}", flush=True)


def main() -> None:
    """Run the three networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs-frac", type=float, default=1.0, help="share of the pairs to run, for a quick look")
    frac = parser.parse_args().pairs_frac
    networks = [
        ("resnet18, 224 px, batch 4", find_workload("resnet18"), 224, 4, 100),
        ("resnet18, 32 px, batch 16", find_workload("resnet18"), 32, 16, 300),
        ("2-layer MLP, batch 16 (worst case)", MLP(), 8, 16, 3000),
    ]
    print(f"{conditions()}\niteration time over a bare loop's")
    for name, workload, size, batch_size, num_pairs in networks:
        case = Case(workload.prepare(), size, batch_size, "train", "fp32", torch.device("cpu"), DataRequest())
        report(name, Loop(case), max(6, int(frac * num_pairs)))


if __name__ == "__main__":
    main()
