"""Child process of `ncu`: runs one iteration of a case with NVTX ranges."""

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
    number = torch.cuda.nvtx.range_start(RANGE_PREFIX + phase)
    yield
    torch.cuda.nvtx.range_end(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
