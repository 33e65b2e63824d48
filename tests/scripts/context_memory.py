"""Prints the memory of a process's CUDA context (bytes): bare, and with the libraries of a small training."""

import pynvml
import torch

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)


def used_bytes() -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used)  # without what the driver reserves


before = used_bytes()
torch.zeros(1, device="cuda")
bare = used_bytes() - before
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 7), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(), torch.nn.Linear(64, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9)
for _ in range(3):
    net(torch.randn(8, 3, 64, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(bare, used_bytes() - before - torch.cuda.memory_reserved())
