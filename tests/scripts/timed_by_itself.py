"""A small convolutional training that prints the times of its phases by its own events, or by the host's clock.

Arguments: device, side of an image, batch size, number of iterations, width.
"""

import json
import sys
import time
from statistics import median

import torch
from torch.utils.data import DataLoader, TensorDataset

DEVICE = sys.argv[1]
SIZE, BATCH_SIZE, COUNT, WIDTH = map(int, sys.argv[2:6])
CUDA = DEVICE.startswith("cuda")
NUM_WARM = COUNT // 3
PHASES = ("forward", "loss", "backward", "update")

torch.manual_seed(0)
layers, channels = [], 3
for _ in range(6):
    layers += [torch.nn.Conv2d(channels, WIDTH, 3, padding=1), torch.nn.BatchNorm2d(WIDTH), torch.nn.ReLU()]
    channels = WIDTH
model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(WIDTH, 10))
model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
loss_of = torch.nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(BATCH_SIZE * 8, 3, SIZE, SIZE), torch.randint(0, 10, (BATCH_SIZE * 8,)))
loader = DataLoader(data, BATCH_SIZE, pin_memory=CUDA)


def now():
    if not CUDA:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def since(begin, end):
    return begin.elapsed_time(end) / 1e3 if CUDA else end - begin


def wait():
    if CUDA:
        torch.cuda.synchronize()


stamps, begun_s = [], 0.0
while len(stamps) < COUNT:
    for inputs, labels in loader:
        if len(stamps) == NUM_WARM:
            wait()
            begun_s = time.perf_counter()
        inputs, labels = inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        begin = now()
        outputs = model(inputs)
        forward = now()
        loss = loss_of(outputs, labels)
        after_loss = now()
        loss.backward()
        backward = now()
        optimizer.step()
        optimizer.zero_grad()
        stamps.append((begin, forward, after_loss, backward, now()))
        if len(stamps) == COUNT:
            break
wait()
total_s = time.perf_counter() - begun_s
timed = stamps[NUM_WARM:]
print("TIMES", json.dumps({"total_s": total_s, **{
    phase: median(since(each[index], each[index + 1]) for each in timed) for index, phase in enumerate(PHASES)}}))
