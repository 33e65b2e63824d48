"""Traces built by hand, in the form of torch.profiler, with known times in microseconds."""

import gzip
import json
from pathlib import Path
from typing import Any

MAIN, ENGINE = 100, 200
"""Threads: that of the program's loop, and autograd's."""


class TraceMaker:
    """Collects events; `write` makes a file of them."""

    def __init__(self, **beside: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.beside = beside
        self._id = 0

    def event(self, cat: str, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> dict[str, Any]:
        """Add a span."""
        made = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        self.events.append(made)
        return made

    def mark(self, name: str, ts: float, dur: float) -> None:
        self.event("user_annotation", name, ts, dur)

    def module(self, name: str, ts: float, dur: float) -> None:
        self.event("python_function", f"nn.Module: {name}", ts, dur)

    def operator(self, name: str, ts: float, dur: float, tid: int = MAIN, **args: Any) -> int:
        """Add an operator; returns its id."""
        self._id += 1
        self.event("cpu_op", name, ts, dur, tid, **{"External id": self._id, **args})
        return self._id

    def kernel(self, name: str, launched: float, ts: float, dur: float, *, by: int | None = None, tid: int = MAIN,
               stream: int = 7, cat: str = "kernel", **args: Any) -> None:
        """Add a kernel, and what launched it on a thread of the host."""
        self._id += 1
        launcher = {} if by is None else {"External id": by}
        self.event("cuda_runtime", "cudaLaunchKernel", launched, 0.5, tid, correlation=self._id, **launcher)
        self.event(cat, name, ts, dur, stream, device=0, stream=stream, correlation=self._id, **launcher, **args)

    def text(self) -> str:
        return json.dumps({"schemaVersion": 1, **self.beside, "traceEvents": self.events, "traceName": "x"})

    def write(self, path: Path) -> Path:
        """Write the trace, packed where the name says so."""
        text = self.text().encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def training(num_iterations: int = 3, **beside: Any) -> TraceMaker:
    """Iterations of 1,000 µs on the host; in each 100 data, 300 forward, 50 loss, 350 backward, 100 update, 100 other.

    On the device, which the host runs ahead of, an iteration takes 1,200: 300 forward, 20 loss, 500 backward of which
    100 beside communication, then 200 of communication alone, 180 update.
    """
    made = TraceMaker(**beside)
    for number in range(num_iterations):
        at, gpu = 1000.0 * number, 500 + 1200.0 * number
        made.mark(f"ProfilerStep#{number + 5}", at, 1000)
        made.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100)
        made.module("Net_0", at + 100, 300)
        made.module("Linear_0", at + 110, 100)
        linear = made.operator("aten::addmm", at + 120, 80, **{
            "Sequence number": number, "Input Dims": [[8, 4], [4], [], [[2, 2], [3]]]})
        made.kernel("gemm", at + 130, gpu, 300, by=linear, grid=[4, 1, 1], block=[128, 1, 1],
                    **{"registers per thread": 32, "shared memory": 64, "est. achieved occupancy %": 50})
        loss = made.operator("aten::mse_loss", at + 410, 20)
        made.kernel("mse", at + 415, gpu + 300, 20, by=loss)
        node = made.operator("autograd::engine::evaluate_function: AddmmBackward0", at + 450, 300, ENGINE,
                             **{"Sequence number": number})
        inner = made.operator("aten::mm", at + 460, 200, ENGINE)
        made.kernel("gemm_grad", at + 470, gpu + 320, 500, by=inner, tid=ENGINE)
        last = made.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 760, 40,
                             ENGINE)
        made.event("user_annotation", "nccl:all_reduce", at + 770, 10, ENGINE, **{"External id": 10_000 + number})
        made.kernel("ncclDevKernel_AllReduce", at + 772, gpu + 720, 300, by=10_000 + number, tid=ENGINE, stream=9)
        assert node < last
        made.mark("Optimizer.step#SGD.step", at + 800, 100)
        step = made.operator("aten::_foreach_add_", at + 810, 50)
        made.kernel("foreach", at + 820, gpu + 1020, 180, by=step)
    return made
