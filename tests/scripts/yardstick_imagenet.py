"""Pictures by a residual network on made-up data: meters, validation, checkpoints, workers."""

import argparse
import os
import shutil
import time

import torch
from own_clock import num_iterations, phase
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class FakeData(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(index)), index % 10


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class AverageMeter:
    def __init__(self, name: str) -> None:
        self.name, self.val, self.sum, self.count = name, 0.0, 0.0, 0

    def update(self, val: float, n: int = 1) -> None:
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def __str__(self) -> str:
        return f"{self.name} {self.val:.4f} ({self.sum / self.count:.4f})"


class ProgressMeter:
    def __init__(self, num_batches: int, meters: list[AverageMeter], prefix: str) -> None:
        self.num_batches, self.meters, self.prefix = num_batches, meters, prefix

    def display(self, batch: int) -> None:
        print("\t".join([f"{self.prefix}[{batch}/{self.num_batches}]", *map(str, self.meters)]))


def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...]) -> list[Tensor]:
    with torch.no_grad():
        _, predicted = output.topk(max(topk), 1, True, True)
        correct = predicted.t().eq(target.view(1, -1).expand_as(predicted.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer, epoch, device, arguments) -> None:
    batch_time, losses, top1 = AverageMeter("Time"), AverageMeter("Loss"), AverageMeter("Acc@1")
    progress = ProgressMeter(len(loader), [losses, top1], f"Epoch: [{epoch}]")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        num_iterations["train"] += 1
        images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with phase("forward"):
            output = model(images)
        with phase("loss"):
            loss = criterion(output, target)
        acc1, _ = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0].item(), images.size(0))
        optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % arguments.print_freq == 0:
            progress.display(i + 1)


def validate(loader, model, criterion, device) -> float:
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    progress = ProgressMeter(len(loader), [losses, top1], "Test: ")
    model.eval()
    with torch.no_grad():
        for i, (images, target) in enumerate(loader):
            num_iterations["infer"] += 1
            images, target = images.to(device), target.to(device)
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update(accuracy(output, target, topk=(1,))[0].item(), images.size(0))
            progress.display(i + 1)
    return top1.sum / top1.count


def save_checkpoint(state, is_best: bool) -> None:
    torch.save(state, "checkpoint.pth.tar")
    if is_best:
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")


def main() -> None:
    parser = argparse.ArgumentParser(description="pictures")
    parser.add_argument("data", nargs="?", default="imagenet")
    parser.add_argument("-j", "--workers", default=0, type=int)
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("-b", "--batch-size", default=8, type=int)
    parser.add_argument("-p", "--print-freq", default=2, type=int)
    parser.add_argument("--dummy", action="store_true")
    arguments = parser.parse_args()
    if not arguments.dummy:
        parser.error("there are no pictures here: --dummy makes some up")
    torch.manual_seed(0)
    device, best = torch.device("cpu"), 0.0
    model = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3), *(Block(32) for _ in range(3)), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(32, 10)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train_loader = DataLoader(FakeData(40), arguments.batch_size, shuffle=True, num_workers=arguments.workers)
    val_loader = DataLoader(FakeData(16), arguments.batch_size, num_workers=arguments.workers)
    for epoch in range(arguments.epochs):
        train(train_loader, model, criterion, optimizer, epoch, device, arguments)
        acc1 = validate(val_loader, model, criterion, device)
        scheduler.step()
        save_checkpoint({"epoch": epoch + 1, "state_dict": model.state_dict()}, acc1 > best)
        best = max(acc1, best)
    print(sorted(name for name in os.listdir() if name.endswith(".tar")))


if __name__ == "__main__":
    main()
