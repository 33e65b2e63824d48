"""Data-parallel training of a language model, in which each rank reads batches of another length.

The ranks come from the variables of torchrun. A quarter of every batch is padding.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

NUM_WORDS, WIDTH, BATCH, LENGTH, NUM_STEPS, SLEEP_S = 64, 16, 4, 8, 40, 0.02


class LanguageModel(nn.Module):
    """An embedding and a linear layer to the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(NUM_WORDS, WIDTH), nn.Linear(WIDTH, NUM_WORDS, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(input_ids))
        return logits


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.SGD(model.parameters())
    length = LENGTH * (dist.get_rank() + 1)
    for _ in range(NUM_STEPS):
        ids = torch.randint(0, NUM_WORDS, (BATCH, length))
        mask = (torch.arange(length) < length * 3 // 4).long().expand(BATCH, -1)
        logits = model(input_ids=ids, attention_mask=mask)
        time.sleep(SLEEP_S)
        functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
