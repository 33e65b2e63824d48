"""Training on several ranks, data-parallel on a CPU, in which some ranks sleep in one phase of each iteration.

The ranks come from the variables of torchrun. With several `--slow` ranks and `--rotate`, one of them sleeps in turn.
"""

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WIDTH, CLASSES, BATCH = 128, 10, 8
SLEEP: dict[str, float] = {}
"""Time that this rank sleeps in each phase (s)."""


def sleep(phase: str) -> None:
    time.sleep(SLEEP.get(phase, 0.0))


class SleepyData(Dataset[Any]):
    """Random samples; the first of a batch is slept for."""

    def __init__(self, num_batches: int) -> None:
        self._num_samples = BATCH * num_batches

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index % BATCH == 0:
            sleep("data")
        return torch.randn(WIDTH), index % CLASSES


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept; `torch.func` requires it."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        sleep("backward")
        return grad


class Net(nn.Module):
    """Three linear layers; the forward sleeps before the second, the backward after it."""

    def __init__(self, *, normalize: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if normalize else nn.Identity()
        self.second, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        sleep("forward")
        return self.last(self.second(_SleepInBackward.apply(x)).relu())


class Loss(nn.Module):
    """Cross entropy that sleeps."""

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        sleep("loss")
        return nn.functional.cross_entropy(outputs, y)


class SleepySGD(torch.optim.SGD):
    """SGD that sleeps in its step."""

    def step(self, closure: Any = None) -> None:
        sleep("update")
        super().step(closure)


def parallel(net: Net, how: str) -> nn.Module:
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.05)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in (net.first, net.second, net.last):
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--sleep", default="backward")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--base", type=float, default=0.0, help="sleep of every rank, half in each of two phases (s)")
    parser.add_argument("--slow", type=int, nargs="*", default=[1])
    parser.add_argument("--rotate", action="store_true")
    parser.add_argument("--normalize", action="store_true")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--finished", default=None, help="directory in which a file per rank gets a byte an iteration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model, criterion = parallel(Net(normalize=options.normalize), options.parallel), Loss()
    optimizer = SleepySGD(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(DataLoader(SleepyData(options.iterations), batch_size=BATCH)):
        turn = options.slow[number % len(options.slow)] if options.rotate else rank
        SLEEP.update(dict.fromkeys(SLEEP, 0.0) | {"forward": options.base / 2, "backward": options.base / 2})
        if rank in options.slow and rank == turn:
            SLEEP[options.sleep] = SLEEP.get(options.sleep, 0.0) + options.seconds
        if number == options.fail_at and rank == 1:
            raise ValueError("bad batch")
        while number == options.hang_at and rank == 1:
            time.sleep(0.1)
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.finished is not None:
            with open(f"{options.finished}/{rank}", "ab") as finished:
                finished.write(b".")
    # gloo's thread needs the GIL to drop its last work, and the group's destructor joins that thread with the GIL held.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
