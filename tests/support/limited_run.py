"""Train a workload in this process under a limit of memory: `limited_run.py NAME VARIANT SIZE BATCH LIMIT_BYTES`."""

import sys

import charact.measure  # noqa: F401  (quiets torch, so it comes first)

# isort: split
import torch

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.memory_limit import give_back_to_system
from charact.execution.out_of_memory import is_out_of_memory
from charact.measure.memory_sweep.measured_case import MemoryCase
from charact.workload.registry import find_workload


def main() -> None:
    """Print `ok` or `oom`."""
    name, variant, *numbers = sys.argv[1:]
    size, batch_size, limit_bytes = map(int, numbers)
    give_back_to_system()
    case = Case(find_workload(name).prepare(variant), size, batch_size, "train", "fp32", torch.device("cpu"),
                DataRequest())
    try:
        MemoryCase(case, limit_bytes).measure()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print("oom")
    else:
        print("ok")


if __name__ == "__main__":
    main()
