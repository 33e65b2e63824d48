"""Digits by a small convolutional network: train and test functions, a scheduler, arguments."""

import argparse

import torch
from own_clock import num_iterations, phase
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = self.dropout(functional.max_pool2d(x, 2))
        x = self.fc2(functional.relu(self.fc1(torch.flatten(x, 1))))
        return functional.log_softmax(x, dim=1)


def train(arguments, model, device, loader, optimizer, epoch) -> None:
    model.train()
    for index, (data, target) in enumerate(loader):
        num_iterations["train"] += 1
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        with phase("forward"):
            output = model(data)
        with phase("loss"):
            loss = functional.nll_loss(output, target)
        with phase("backward"):
            loss.backward()
        optimizer.step()
        if index % arguments.log_interval == 0:
            print(f"Train Epoch: {epoch} [{index * len(data)}/{len(loader.dataset)}]\tLoss: {loss.item():.6f}")


def test(model, device, loader) -> None:
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            num_iterations["infer"] += 1
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += functional.nll_loss(output, target, reduction="sum").item()
            predicted = output.argmax(dim=1, keepdim=True)
            correct += predicted.eq(target.view_as(predicted)).sum().item()
    size = len(loader.dataset)
    print(f"\nTest set: Average loss: {test_loss / size:.4f}, Accuracy: {correct}/{size}\n")


def made_up(num_samples: int) -> TensorDataset:
    return TensorDataset(torch.randn(num_samples, 1, 28, 28), torch.randint(0, 10, (num_samples,)))


def main() -> None:
    parser = argparse.ArgumentParser(description="digits")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--log-interval", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cpu")
    train_loader = DataLoader(made_up(96), batch_size=arguments.batch_size, shuffle=True)
    test_loader = DataLoader(made_up(48), batch_size=arguments.batch_size)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=arguments.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, arguments.epochs + 1):
        train(arguments, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
