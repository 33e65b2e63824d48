"""Processes of several ranks on this machine, and their process group."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from charact.measure.script.ranks.collectives import enable_flight_recorder

_NUM_RECORDED = 4096
"""Collectives that PyTorch keeps of each rank until they are read."""
_LOOPBACK = "lo"
"""Network interface through which the ranks talk: all of them are on this machine."""


def backend_of(device_type: str) -> str:
    """Return the backend of ranks on a type of device, cpu or cuda."""
    return "nccl" if device_type == "cuda" else "gloo"


def threads_of_rank(num_ranks: int) -> int:
    """Return the number of threads inside an operator of each rank: the ranks share those of this process."""
    return max(1, torch.get_num_threads() // num_ranks)


@contextlib.contextmanager
def with_threads(number: int | None) -> Iterator[None]:
    """Let operators use a number of threads in the context; None changes nothing."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Result = TypeVar("Result")


@dataclass(frozen=True)
class _Task:
    """Parameters of every rank."""

    work: Callable[[torch.device], object]
    folder: str
    num_ranks: int
    device_type: str
    num_threads: int


def results_of_ranks(work: Callable[[torch.device], Result], kind: type[Result], num_ranks: int, device_type: str,
                     num_threads: int | None = None) -> list[Result]:
    """Call `work` with the device of its rank in a new process for each rank; return the results by rank.

    Results pass through JSON, from which they are restored as `kind`. By default the ranks share the threads.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    with tempfile.TemporaryDirectory(prefix="charact-ranks-") as folder:
        task = _Task(work, folder, num_ranks, device_type, num_threads or threads_of_rank(num_ranks))
        ranks = start_ranks(_run_rank, task, num_ranks)
        try:
            while not ranks.join():
                pass
        except ProcessException as error:
            # A rank's message is its traceback; the last line is the error.
            raise RuntimeError(f"rank {error.error_index}: {str(error).strip().splitlines()[-1]}") from error
        finally:
            for process in ranks.processes:
                process.terminate()
        return [msgspec.json.decode(Path(folder, f"{rank}.json").read_bytes(), type=kind) for rank in range(num_ranks)]


def _run_rank(rank: int, task: _Task) -> None:
    with process_group(rank, task.num_ranks, task.folder, task.device_type, task.num_threads) as device:
        Path(task.folder, f"{rank}.json").write_bytes(msgspec.json.encode(task.work(device)))


def start_ranks(function: Callable[..., None], task: Any, num_ranks: int, *more: Any) -> Any:
    """Call a function with its rank, a task and more in a new process for each rank; return torch's ProcessContext.

    SIGINT is blocked in processes while they import, which would print a traceback; this process receives a pending one
    at the end. PyTorch's flight recorder is on in them.
    """
    resource_tracker.ensure_running()  # otherwise it would start in the context, and unblock signals
    signals, environment = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}), os.environ.copy()
    enable_flight_recorder(os.environ, _NUM_RECORDED)
    try:
        return start_processes(  # type: ignore[no-untyped-call]
            function, args=(task, *more), nprocs=num_ranks, join=False, daemon=True, start_method="spawn")
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


@contextlib.contextmanager
def process_group(rank: int, num_ranks: int, folder: str, device_type: str, num_threads: int) -> Iterator[torch.device]:
    """Prepare the process of a rank; yield its device. On CUDA each rank uses the device of its index.

    The ranks meet in `folder`.
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
