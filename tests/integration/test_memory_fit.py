"""What is predicted to fit does fit: against bisection by really running under a limit."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.target_devices import target_of_memory
from charact.measure.memory_sweep.integer_search import largest_fitting
from charact.workload.registry import find_workload

CHILD = Path(__file__).parents[1] / "support" / "limited_run.py"


def runs(name: str, variant: str, size: int, batch_size: int, limit_bytes: int) -> bool:
    """Whether a training goes well in a process of its own under a limit."""
    numbers = [str(number) for number in (size, batch_size, limit_bytes)]
    done = subprocess.run([sys.executable, str(CHILD), name, variant, *numbers], capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.stdout in ("ok\n", "oom\n"), done.stderr
    return done.stdout == "ok\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant", "size", "limit_mib"), [
    ("resnet18", "imagenet", 112, 300), ("rnn_lm", "lstm", 35, 280), ("transformer", "small", 48, 700),
])
def test_it_agrees_with_running_under_a_limit(name: str, variant: str, size: int, limit_mib: int) -> None:
    limit_bytes = limit_mib * 2**20
    case = Case(find_workload(name).prepare(variant), size, 1, "train", "fp32", torch.device("cpu"), DataRequest())
    estimator = Estimator(target_of_memory(limit_bytes, "cpu"))

    def room(value: int) -> float:
        return limit_bytes - estimator.estimate(replace(case, batch_size=value)).needed_bytes

    found = largest_fitting(room, 1, 2, 200)
    assert found is not None
    ran = largest_fitting(lambda value: math.inf if runs(name, variant, size, value, limit_bytes) else -math.inf,
                          1, found, 2 * found)
    assert ran is not None
    print(f"{name}: predicted {found}, ran {ran}")
    assert ran - found in (0, 1)
