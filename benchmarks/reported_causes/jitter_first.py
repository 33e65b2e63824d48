"""Pictures get random brightness, contrast and saturation at full size, and are made small afterwards.

Report: NVIDIA/cosmos-framework, issue 174.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))


class Resize(nn.Module):
    """Makes pictures smaller."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, images):
        return F.interpolate(images[None], self.size, mode="bilinear")[0]


class ColorJitter(nn.Module):
    """Changes brightness, contrast and saturation at random."""

    def forward(self, images):
        brightness, contrast, saturation = (torch.rand(3) * 0.4 + 0.8).tolist()
        images = (images * brightness).clamp(0, 1)
        gray = (images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)
        images = (gray.mean() + contrast * (images - gray.mean())).clamp(0, 1)
        return (gray + saturation * (images - gray)).clamp(0, 1)


class Views(Dataset):
    """Views of a camera and the steering angle."""

    def __init__(self, num):
        self.frames = torch.randint(0, 256, (num, 3, 360, 640), dtype=torch.uint8)
        self.angles = torch.randn(num)
        steps = [ColorJitter(), Resize((45, 80))]
        self.transform = nn.Sequential(*(reversed(steps) if REMEDY else steps))

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        return self.transform(self.frames[index].float() / 255), self.angles[index]


def train(model, loader, num_epochs):
    """Train the model; return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(num_epochs):
        for images, angles in loader:
            loss = F.mse_loss(model(images).squeeze(1), angles)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 24, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                      nn.Flatten(), nn.Linear(384, 1))
loader = DataLoader(Views(100), batch_size=8, shuffle=True)
start = time.perf_counter()
loss = train(model, loader, 4)
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
