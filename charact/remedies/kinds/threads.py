"""Compute in fewer threads."""

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_SMALL_FRAC = 0.05
"""Share of the time that one thread is expected to save for a model whose operators are not known to be large."""


def _settings(program: Program) -> list[Setting] | str:
    if not program.on_cpu:
        return "the model is not on the CPU"
    now, cores = program.num_threads, program.num_cores
    if now is None:
        return "the number of threads was not recorded"
    expected = program.expected_frac("threads", "contention")
    numbers = sorted({1, max(cores // 2, 1), cores} - {now} if now > cores else {1, max(cores // 2, 1)} - {now})
    if not numbers:
        return f"PyTorch computes in {now} thread{'' if now == 1 else 's'} already"
    return [Setting("threads", {"num_threads": number}, f"set_num_threads({number})",
                    program.change(f"torch.set_num_threads({number})", f"--threads {number}"),
                    expected_frac=expected or _SMALL_FRAC) for number in numbers]


def _apply(num_threads: int) -> None:
    import os

    import torch

    original, process = torch.set_num_threads, os.getpid()

    def in_other_processes(nthreads: int) -> None:
        if os.getpid() != process:  # a worker of a DataLoader, which computes in one thread
            original(nthreads)

    original(num_threads)
    torch.set_num_threads = in_other_processes


REMEDY = Remedy("threads", _settings, _apply, numerics="rounded", findings=("threads", "contention"))
