"""What watching a user's own loop costs: iteration time under `charact run` over that of the bare loop, interleaved.

Run `python benchmarks/own_code.py [--pairs-frac 0.1]`. The loop is written out below as a user would write it, without
anything of charact's. In each pair it runs bare and watched (the patches are put in and taken out again outside of the
clock; the spool is written), so that what else the machine does falls on both alike; torch.profiler stands beside it.

`traceml run benchmarks/own_code.py --args --traceml` does the same with TraceML (PyPI: traceml-ai) for charact: its
patches stay in for the bare loop, too, but do nothing outside of its steps, so its figures are lower bounds.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from conditions import conditions
from interleaved import compare
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from charact.datasets._common.request import DataRequest
from charact.measure.script.session import Plan, Session
from charact.workload.registry import find_workload

Around = Callable[[], contextlib.AbstractContextManager[object]]


class Loop:
    """A training as in every tutorial.

    Args:
        model: what is trained, to tell 10 classes or more apart.
        shape: of one sample.
        num_iterations: of one epoch, which is what a pair runs.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], num_iterations: int) -> None:
        self.model = model
        self.num_iterations = num_iterations
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        num_samples = 16 * num_iterations
        self._data = TensorDataset(torch.randn(num_samples, *shape), torch.randint(0, 10, (num_samples,)))

    def epoch(self, step: Around = contextlib.nullcontext) -> float:
        """Train for an epoch; returns the seconds that it took of the processor. `step` is put around each iteration.

        Seconds of the clock would be those of whatever else the machine does, too.
        """
        loader: Any = DataLoader(self._data, batch_size=16, shuffle=True)
        begun = time.process_time()
        for x, y in loader:
            with step():
                self._optimizer.zero_grad()
                loss = functional.cross_entropy(self.model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
        return time.process_time() - begun


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Watch what runs inside as `charact run` does.

    That begins when PyTorch has just been imported: the compiler, which the first optimizer imports, is not there yet.
    """
    with tempfile.TemporaryDirectory() as directory:
        session = Session(Path(directory), Plan())
        compiler = sys.modules.pop("torch._dynamo")
        session.start()
        sys.modules["torch._dynamo"] = compiler
        try:
            yield
        finally:
            session.close("measured")
            assert session.problem is None, session.problem


def profiled() -> profile:
    """Profile what runs inside with torch.profiler's own settings; its start and stop lie outside of the clock."""
    return profile(activities=[ProfilerActivity.CPU])


def report(name: str, loop: Loop, num_pairs: int) -> None:
    """Print the ratios of one network."""
    def inside(around: Around) -> Callable[[], float]:
        def run() -> float:
            with around():
                return loop.epoch()

        return run

    bare_s = min(loop.epoch() for _ in range(5)) / loop.num_iterations
    print(f"{name}: {1e3 * bare_s:.3g} ms an iteration")
    few = max(6, num_pairs // 5)
    print(f"  bare loop over itself (noise)  {compare(loop.epoch, loop.epoch, num_pairs)}", flush=True)
    print(f"  charact run, timing pass       {compare(inside(watched), loop.epoch, num_pairs)}", flush=True)
    print(f"  torch.profiler                 {compare(inside(profiled), loop.epoch, few)}", flush=True)


def report_traceml(name: str, loop: Loop, num_pairs: int) -> None:
    """Print the ratio of one network with TraceML's steps around its iterations."""
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init(mode="auto", on_missing_aggregator="raise")

    def stepwise() -> float:
        return loop.epoch(lambda: traceml_ai.trace_step(loop.model))

    for _ in range(5):
        stepwise()
    print(f"{name}\n  TraceML                        {compare(stepwise, loop.epoch, num_pairs)}", flush=True)


def main() -> None:
    """Run the two networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs-frac", type=float, default=1.0, help="share of the pairs to run, for a quick look")
    parser.add_argument("--traceml", action="store_true", help="measure TraceML, under `traceml run`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # several that wait for each other take processor time for nothing
    workload: Any = find_workload("resnet18").prepare()
    resnet = workload.model(workload.dataset(32, DataRequest()))
    wide = nn.Sequential(nn.Linear(448, 448), nn.ReLU(), nn.Linear(448, 448), nn.ReLU(), nn.Linear(448, 10))
    print(f"{conditions()}\ntime of an epoch over the bare loop's")
    for name, loop, num_pairs in (
        ("resnet18, 32 px, batch 16", Loop(resnet, (3, 32, 32), 6), 60),
        ("3-layer MLP, batch 16", Loop(wide, (448,), 300), 120),
    ):
        (report_traceml if arguments.traceml else report)(name, loop, max(6, int(arguments.pairs_frac * num_pairs)))


if __name__ == "__main__":
    main()
