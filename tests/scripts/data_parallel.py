"""DistributedDataParallel over as many processes as its argument says; this process is rank 0."""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from truth import Truth


def train(rank: int, world_size: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    truth = Truth()
    model = DistributedDataParallel(SleepyModel())
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, y in truth.batches(sleepy_loader(6)):
        with truth("forward"):
            outputs = model(x)
        with truth("loss"):
            loss = functional.cross_entropy(outputs, y)
        with truth("backward"):
            loss.backward()
        with truth("update"):
            optimizer.step()
            optimizer.zero_grad()
        with truth("communication"):
            total = loss.detach().clone()
            dist.all_reduce(total)
        if rank == 0:
            print(f"{total.item():.6f}")
    if rank == 0:
        truth.write()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    num_ranks, store_file = int(sys.argv[1]), os.path.abspath("store")
    others = [multiprocessing.get_context("spawn").Process(target=train, args=(other, num_ranks, store_file))
              for other in range(1, num_ranks)]
    for process in others:
        process.start()
    train(0, num_ranks, store_file)
    for process in others:
        process.join()
        print(f"exit status {process.exitcode}")
