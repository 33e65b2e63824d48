"""A workload whose forward pass sleeps for a known time in each rank."""

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from support.small import TwoLayers


@dataclass(kw_only=True)
class SleepingRanks(TwoLayers):
    """Sleeps for each sample of its batch, longer if there are several ranks."""

    sleep_s: float = 0.0
    """For each sample."""
    factors: tuple[float, ...] = (1.0, 1.0)
    """Factor of the sleep of each rank if there are several."""
    hook_s: float = 0.0
    """Sleep in each exchange of gradients, which nothing overlaps."""
    failing_rank: int | None = None

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        several = dist.is_initialized() and dist.get_world_size() > 1
        if several and dist.get_rank() == self.failing_rank:
            raise ValueError(f"rank {dist.get_rank()} is broken in {os.path.basename(__file__)}")
        if several and self.hook_s and not getattr(model, "has_hook", False):
            model.register_comm_hook(None, self._slow_exchange)  # type: ignore[operator]
            model.has_hook = True  # type: ignore[assignment]
        time.sleep(self.sleep_s * len(batch[0]) * (self.factors[dist.get_rank()] if several else 1.0))
        return super().forward(model, batch)

    def _slow_exchange(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Sum the gradients of a bucket, then sleep in the thread that finishes the exchange."""
        def finish(future: Any) -> Tensor:
            time.sleep(self.hook_s)
            return future.value()[0] / dist.get_world_size()

        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
        then: torch.futures.Future[Tensor] = work.get_future().then(finish)
        return then
