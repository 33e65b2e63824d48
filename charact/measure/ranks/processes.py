"""Processes of several ranks on this machine, and their process group."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from charact.measure.script.ranks.flight_recorder import enable_flight_recorder

_NUM_RECORDED = 4096
"""Collectives that PyTorch keeps of each rank until they are read."""
_LOOPBACK = "lo"
"""Network interface through which the ranks talk: all of them are on this machine."""


def backend_of(device_type: str) -> str:
    """Return the backend of ranks on a type of device, cpu or cuda."""
    return "nccl" if device_type == "cuda" else "gloo"


def run_ranks(function: Callable[..., None], task: Any, num_ranks: int) -> None:
    """Call a function with its rank and a task in a new process for each rank; wait for all.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    ranks = start_ranks(function, task, num_ranks)
    try:
        while not ranks.join():
            pass
    except ProcessException as error:
        # A rank's message is its traceback; the last line is the error.
        raise RuntimeError(f"rank {error.error_index}: {str(error).strip().splitlines()[-1]}") from error
    finally:
        for process in ranks.processes:
            process.terminate()


def start_ranks(function: Callable[..., None], task: Any, num_ranks: int, *more: Any) -> Any:
    """Call a function with its rank, a task and more in a new process for each rank; return torch's ProcessContext."""
    with _interrupts_held(), _collectives_recorded():
        return start_processes(  # type: ignore[no-untyped-call]
            function, args=(task, *more), nprocs=num_ranks, join=False, daemon=True, start_method="spawn")


@contextlib.contextmanager
def process_group(rank: int, num_ranks: int, folder: str, device_type: str, num_threads: int) -> Iterator[torch.device]:
    """Prepare the process of a rank; yield its device. On CUDA each rank uses the device of its index.

    Args:
        rank: the rank.
        num_ranks: number of ranks.
        folder: directory that all ranks see, in which they meet.
        device_type: cpu or cuda.
        num_threads: number of threads inside an operator.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(num_threads)
    on_cuda = device_type == "cuda"
    device = torch.device(device_type, rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    if sys.platform == "linux":
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, _LOOPBACK)
    dist.init_process_group(backend_of(device_type), rank=rank, world_size=num_ranks,
                            init_method=f"file://{folder}/store", device_id=device if on_cuda else None)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def largest_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """Return the maximum over ranks of each value."""
    values_of_ranks = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(values_of_ranks, op=dist.ReduceOp.MAX)
    return values_of_ranks.tolist()


@contextlib.contextmanager
def _collectives_recorded() -> Iterator[None]:
    """Switch PyTorch's flight recorder on in processes started in the context."""
    before = os.environ.copy()
    enable_flight_recorder(os.environ, _NUM_RECORDED)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT for processes started in the context, which would print a traceback while importing.

    The starting process receives a pending SIGINT at the end.
    """
    resource_tracker.ensure_running()  # otherwise it would start in the context, and unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
