"""Whether `charact ops` times an operation as torch.utils.benchmark does, by turns in one process.

Run `python benchmarks/operations.py`, with `--pairs 31` for fewer pairs. Both call with the same inputs again and
again, as torch.utils.benchmark does: `--hot`. Both give the median of as many repetitions, each of as many calls: on a
machine that does other things a long repetition is interrupted more often than a short one.
"""

import argparse
import math
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from conditions import conditions
from interleaved import Timed, compare
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.utils.benchmark import Timer

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.measure.microbench.operation_timing import rotated_inputs, time_direction
from charact.measure.passes.timing import StopRule
from charact.ops import all_kinds, parse_problem

CPU = torch.device("cpu")
NUM_REPETITIONS = 6

Statement = Callable[..., object]
PROBLEMS: tuple[tuple[str, str, Statement], ...] = (
    ("gemm:64x64x64", "forward", torch.mm),
    ("gemm:1760x16x1760", "forward", torch.mm),
    ("gemm:1760x128x1760", "forward", torch.mm),
    ("gemm:2048x128x2048:tn", "forward", torch.mm),
    ("convolution:1x16x14x14:16x3x3:p1", "forward", lambda x, w: functional.conv2d(x, w, padding=1)),
    ("convolution:8x64x54x54:64x3x3:p1", "forward", lambda x, w: functional.conv2d(x, w, padding=1)),
    ("convolution:8x64x54x54:64x3x3:p1", "backward_input",
     lambda dy, w: conv2d_input((8, 64, 54, 54), w, dy, padding=1)),  # type: ignore[no-untyped-call]
    ("convolution:8x64x54x54:64x3x3:p1", "backward_weight",
     lambda dy, x: conv2d_weight(x, (64, 64, 3, 3), dy, padding=1)),  # type: ignore[no-untyped-call]
    ("convolution:4x1x161x700:32x5x20:s2", "forward", lambda x, w: functional.conv2d(x, w, stride=2)),
)


def both(text: str, direction: str, statement: Statement) -> tuple[Timed, Timed]:
    """The median call as charact times it, and as torch.utils.benchmark does, of the same inputs."""
    problem = parse_problem(text)
    prepared = all_kinds()[problem.operation].prepare(problem, direction, "fp32", CPU)
    rotated = rotated_inputs(prepared, CPU, hot=True)
    rule = StopRule(precision_target_frac=0.0, max_iterations=NUM_REPETITIONS, max_seconds=math.inf)
    timer = Timer("statement(*inputs)", globals={"statement": statement, "inputs": rotated[0]},
                  num_threads=torch.get_num_threads())

    def repetitions() -> list[dict[str, Any]]:
        return time_direction(prepared, rotated, CPU, rule, lambda number, median_s: None).rows

    num_calls = repetitions()[0]["num_calls"]
    return (lambda: median(float(row["host_s"]) for row in repetitions()),
            lambda: median(float(timer.timeit(num_calls).mean) for _ in range(NUM_REPETITIONS)))


def main() -> None:
    """Compare every problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=101)
    num_pairs = parser.parse_args().pairs
    print(f"{conditions()}\ncharact ops over torch.utils.benchmark")
    for text, direction, statement in PROBLEMS:
        ours, theirs = both(text, direction, statement)
        print(f"  {text} {direction}: {compare(ours, theirs, num_pairs)}")


if __name__ == "__main__":
    main()
