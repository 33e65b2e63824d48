"""A workload whose forward pass sleeps for a known time in each rank."""

import os
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from support.small import TwoLayers


@dataclass(kw_only=True)
class SleepingRanks(TwoLayers):
    """Sleeps for each sample of its batch, longer if there are several ranks."""

    sleep_s: float = 0.0
    """For each sample."""
    several_factor: float = 1.0
    """Factor of the sleep if there are several ranks."""
    failing_rank: int | None = None

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        several = dist.is_initialized() and dist.get_world_size() > 1
        if several and dist.get_rank() == self.failing_rank:
            raise ValueError(f"rank {dist.get_rank()} is broken in {os.path.basename(__file__)}")
        time.sleep(self.sleep_s * len(batch[0]) * (self.several_factor if several else 1.0))
        return super().forward(model, batch)
