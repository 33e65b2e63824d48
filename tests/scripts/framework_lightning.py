"""Lightning: trains bare, then watched, then watched with an error in the fourth step; tells what each did."""

import json
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from charact.integrations.lightning import CharactCallback

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


class Model(pl.LightningModule):
    def __init__(self, fail_at: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)
        self.losses: list[float] = []
        self.times: dict[str, list[float]] = {"forward": [], "loss": []}
        self._fail_at = fail_at

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.008)
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        if len(self.losses) == self._fail_at:
            raise RuntimeError("on purpose")
        times = [time.perf_counter()]
        outputs = self(batch[0])
        times.append(time.perf_counter())
        time.sleep(0.02)
        loss = cross_entropy(outputs, batch[1])
        times.append(time.perf_counter())
        self.times["forward"].append(times[1] - times[0])
        self.times["loss"].append(times[2] - times[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self(batch[0])

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[object]]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def fit(callbacks: list[object], fail_at: int | None = None) -> Model:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,)))
    model = Model(fail_at)
    trainer = pl.Trainer(
        max_epochs=2, callbacks=callbacks, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", num_sanity_val_steps=2)
    trainer.fit(model, DataLoader(data, batch_size=2), DataLoader(data, batch_size=4))
    return model


bare = fit([])
callback = CharactCallback(out=sys.argv[1])
watched = fit([callback])
run = callback.profiler.run.path
try:
    fit([callback], fail_at=4)
except RuntimeError as error:
    raised = str(error)
print(json.dumps({
    "bare": bare.losses, "watched": watched.losses, "times": watched.times, "run": str(run), "raised": raised,
    "failed": str(callback.profiler.run.path), "train": 16, "infer": 2 + 2 * 4, "batch_sizes": [2, 4],
}))
