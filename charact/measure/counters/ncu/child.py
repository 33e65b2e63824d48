"""One iteration of a case between marks that Nsight Compute sees: run by `ncu`, with the file of a case."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from charact.measure.counters._support.rerun_case import warm_loop

RANGE_PREFIX = "charact_phase_"


def main(path: Path) -> None:
    """Warm up, then run one iteration with a range around each phase."""
    with warm_loop(path) as loop:
        loop.iteration(_range)
        if loop.case.device.type == "cuda":
            torch.cuda.synchronize(loop.case.device)


@contextlib.contextmanager
def _range(phase: str) -> Iterator[None]:
    """A range of the whole process: one that is pushed belongs to a thread, and backward runs in another one."""
    number = torch.cuda.nvtx.range_start(RANGE_PREFIX + phase)
    yield
    torch.cuda.nvtx.range_end(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
