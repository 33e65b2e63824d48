"""One iteration of a case between marks that Nsight Compute sees: run by `ncu`, with the file of a case."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from charact.measure.counters._rerun import NUM_WARM_UPS, read_case
from charact.measure.loop import Loop
from charact.measure.precision import float32_products

RANGE_PREFIX = "charact_phase_"


def main(path: Path) -> None:
    """Warm up, then run one iteration with a range around each phase."""
    case = read_case(path)
    if case.device.type == "cuda":
        torch.cuda.set_device(case.device)
    with float32_products(case.precision):
        loop = Loop(case)
        try:
            for _ in range(NUM_WARM_UPS):
                loop.iteration(contextlib.nullcontext)
            loop.iteration(_range)
            if case.device.type == "cuda":
                torch.cuda.synchronize(case.device)
        finally:
            loop.close()


@contextlib.contextmanager
def _range(phase: str) -> Iterator[None]:
    """A range of the whole process: one that is pushed belongs to a thread, and backward runs in another one."""
    number = torch.cuda.nvtx.range_start(RANGE_PREFIX + phase)
    yield
    torch.cuda.nvtx.range_end(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
