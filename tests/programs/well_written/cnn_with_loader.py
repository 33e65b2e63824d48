"""A convolutional network whose loader has images in memory and fetches a batch at once."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(2)
data = TensorDataset(torch.randn(640, 3, 32, 32), torch.randint(0, 10, (640,)))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 32, drop_last=True), batch_size=None)
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10))
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
start = time.perf_counter()
for _ in range(10):
    for images, labels in loader:
        loss = F.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
