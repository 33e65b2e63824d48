"""A variational autoencoder: a loss of two terms, one of them written by hand."""

import torch
from own_clock import num_iterations, phase
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21, self.fc22 = nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.fc1(x))
        return self.fc21(hidden), self.fc22(hidden)

    def reparameterize(self, mu: Tensor, logvar: Tensor) -> Tensor:
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x.view(-1, 784))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon: Tensor, x: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    likelihood = functional.binary_cross_entropy(recon, x.view(-1, 784), reduction="sum")
    divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return likelihood + divergence


torch.manual_seed(1)
device = torch.device("cpu")
train_loader = DataLoader(TensorDataset(torch.rand(768, 1, 28, 28)), batch_size=128, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.rand(256, 1, 28, 28)), batch_size=128)
model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)


def train(epoch: int) -> None:
    model.train()
    train_loss = 0.0
    for data, in train_loader:
        num_iterations["train"] += 1
        data = data.to(device)
        optimizer.zero_grad()
        with phase("forward"):
            recon, mu, logvar = model(data)
        with phase("loss"):
            loss = loss_function(recon, data, mu, logvar)
        with phase("backward"):
            loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")


def test() -> None:
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for data, in test_loader:
            num_iterations["infer"] += 1
            data = data.to(device)
            test_loss += loss_function(*((outputs := model(data))[0], data), *outputs[1:]).item()
    print(f"====> Test set loss: {test_loss / len(test_loader.dataset):.4f}")


for epoch in range(1, 3):
    train(epoch)
    test()
    with torch.no_grad():
        num_iterations["infer"] += 1  # by a part of the model
        print(model.decode(torch.randn(64, 20).to(device)).shape)
