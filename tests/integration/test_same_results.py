"""A watched program computes what it computes alone: all its random numbers, weights and printed results."""

from pathlib import Path

import pytest
from support.forked import Server
from support.programs import run_bare, run_watched

PROGRAM = '''
import hashlib, random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0); np.random.seed(0); random.seed(0); torch.set_num_threads(1)


class Noisy(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.rand(3, 12, 12) + float(np.random.rand()) + random.random(), index % 4


model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(800, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loaders = DataLoader(Noisy(), 8, shuffle=True), DataLoader(Noisy(), 8, shuffle=True)
for epoch in range(12):
    model.train()
    for images, labels in loaders[0]:
        order = torch.randperm(len(images))
        images = images[order] + torch.randn(images.shape) * torch.empty(1).uniform_()
        loss = F.cross_entropy(F.dropout(model(images), 0.1), labels[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == torch.randint(0, 4, labels.shape)).sum().item()
                    for images, labels in loaders[1])
    states = [torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate()),
              b"".join(value.numpy().tobytes() for value in model.state_dict().values())]
    digests = [hashlib.md5(each if isinstance(each, bytes) else each.encode()).hexdigest()[:6] for each in states]
    print(epoch, right, f"{loss.item():.6f}", *digests)
'''


@pytest.mark.parametrize("options", [(), pytest.param(
    ("--sample", "--passes", "operators,memory,inspection,counters"), marks=pytest.mark.slow)])
def test_a_program_is_not_changed(options: tuple[str, ...], tmp_path: Path, server: Server) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").write_text(PROGRAM)
    if options:  # in processes of their own
        alone, watched = (run(["train.py"] if run is run_bare else [*options, "train.py"], tmp_path / "here").output
                          for run in (run_bare, run_watched))
    else:
        children = [server.start(*command, "train.py", cwd=tmp_path / "here") for command in ([], ["run", "-q"])]
        alone, watched = (child.wait().output for child in children)
    assert alone.count("\n") == 12
    assert watched == alone
