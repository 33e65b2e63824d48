"""An Accelerate loop: trains bare, then tracked, then tracked with an error in the fifth batch."""

import gc
import json
import sys
import time

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from charact.integrations.accelerate import CharactTracker


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.times: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        start_s = time.perf_counter()
        time.sleep(0.01)
        outputs = self.linear(x)
        if self.training:
            self.times.append(time.perf_counter() - start_s)
        return outputs


def train(tracker: CharactTracker | None, fail_at: int | None = None) -> tuple[Model, list[float]]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=tracker)
    own = Model()
    adam = torch.optim.AdamW(own.parameters())
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
    model, optimizer, loader, validation, scheduler = accelerator.prepare(
        own, adam, DataLoader(data, batch_size=4), DataLoader(data, batch_size=8),
        torch.optim.lr_scheduler.StepLR(adam, 1))
    accelerator.init_trackers("project")
    losses: list[float] = []
    for _ in range(2):
        model.train()
        for x, y in loader:
            if len(losses) == fail_at:
                raise RuntimeError("on purpose")
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            for x, _ in validation:
                model(x)
    accelerator.end_training()
    return own, losses


bare = train(None)[1]
tracker = CharactTracker("accelerated", out=sys.argv[1])
model, watched = train(tracker)
run = tracker.profiler.run.path
try:
    train(tracker, fail_at=4)
except RuntimeError as error:
    raised = str(error)
profiler = tracker.profiler
del tracker
gc.collect()
pairs = [sum(model.times[number:number + 2]) for number in range(0, 16, 2)]
print(json.dumps({
    "bare": bare, "watched": watched, "times": {"forward": pairs}, "run": str(run), "raised": raised,
    "failed": str(profiler.run.path), "train": 8, "infer": 2 * 4, "batch_sizes": [2 * 4, 8],
}))
