"""All-reduce sums over several ranks: gloo on CPUs, NCCL on CUDA.

Each rank is a process, on CUDA with its own device; `charact.measure.microbench.collectives` starts them. Bytes
follow the convention of bus bandwidth: of N ranks each sends and receives 2 (N - 1) / N of the numbers' bytes, the
least that any algorithm needs, so that bytes/s compare with a link's whatever N is. FLOP are not counted.

*Source*: NVIDIA, nccl-tests, doc/PERFORMANCE.md.

Tolerance: that of a sum of as many terms as there are ranks, rounded after each of them. The first numbers are
compared.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from charact.core.errors import UserError
from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, flattened, pointwise_refusal, sum_tolerance
from charact.ops.parsing import whole_numbers

MOST_RANKS = 1024
_CHECKED_ELEMENTS = 2**22


class _AllReduce(Kind):
    name = "all_reduce"
    syntax = "all_reduce:NUMBERS[xRANKS]"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `16777216x4`; without RANKS, use `with_ranks`."""
        numbers, *ranks = whole_numbers(sizes, 2 if "x" in sizes else 1, self.syntax)
        if ranks and not 2 <= ranks[0] <= MOST_RANKS:
            raise UserError(f"--problem: '{sizes[:60]}' is between {ranks[0]:,} ranks: name 2 to {MOST_RANKS:,}")
        return _problem(numbers, ranks[0] if ranks else 1)

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes that each rank sends, and receives: bus bandwidth is these over the time."""
        numbers, ranks = problem.numbers("numbers", "ranks")
        return 2 * (ranks - 1) / ranks * itemsize * numbers

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        """Return why it is not supported: it needs several ranks, and on CUDA a device for each."""
        ranks = int(problem.sizes["ranks"])
        if ranks < 2:
            return "all_reduce is between several ranks: use --ranks 2"
        if device.type == "cuda" and torch.cuda.device_count() < ranks:
            return (f"all_reduce of {ranks} ranks needs as many CUDA devices, this machine has "
                    f"{torch.cuda.device_count()}: use --device cpu, or fewer --ranks")
        return pointwise_refusal(self.name, precision, device)

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        """Return normal random numbers, different in each rank; a call works in place, in a rank's process."""
        numbers, ranks = problem.numbers("numbers", "ranks")

        def of_rank(rank: int) -> Tensor:
            return torch.randn(numbers, generator=torch.Generator().manual_seed(rank)).to(DTYPES[precision])

        few = slice(_CHECKED_ELEMENTS)

        def reference(_: Tensor) -> Tensor:
            return torch.stack([of_rank(rank)[few].double() for rank in range(ranks)]).sum(dim=0)

        return Prepared(lambda: [of_rank(dist.get_rank()).to(device)], _all_reduce, reference,
                        lambda result: flattened([result[few]]), ranks**0.5 * sum_tolerance(precision, ranks))


def with_ranks(problem: Problem, num_ranks: int) -> Problem:
    """Return the problem for a number of ranks; one whose text has them keeps its own."""
    numbers, ranks = problem.numbers("numbers", "ranks")
    with_number = _problem(numbers, num_ranks if ranks == 1 else ranks)
    return replace(problem, text=with_number.text, sizes=with_number.sizes)


def _problem(numbers: int, ranks: int) -> Problem:
    text = f"all_reduce:{numbers}" + (f"x{ranks}" if ranks > 1 else "")
    return Problem("all_reduce", text, {"numbers": numbers, "ranks": ranks})


def _all_reduce(numbers: Tensor) -> Tensor:
    dist.all_reduce(numbers)
    return numbers


KIND = _AllReduce()
