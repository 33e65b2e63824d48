"""Workers send a batch as a list of objects with many small tensors.

Report: pytorch/pytorch, issue 123439.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))


class Molecule:
    """Atoms and bonds, and properties of each atom."""

    def __init__(self, number):
        generator = torch.Generator().manual_seed(number)
        self.atoms = torch.randn(24, 32, generator=generator)
        self.bonds = [torch.randint(0, 24, (2,), generator=generator) for _ in range(30)]
        self.charges = [torch.randn(1, generator=generator) for _ in range(24)]
        self.target = torch.randn(1, generator=generator)


class Molecules(Dataset):
    """Molecules in memory."""

    def __init__(self, number):
        self.items = [Molecule(index) for index in range(number)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def joined(molecules):
    """Return the tensors of a batch."""
    return (torch.stack([one.atoms for one in molecules]), torch.stack([torch.stack(one.bonds) for one in molecules]),
            torch.stack([torch.cat(one.charges) for one in molecules]), torch.cat([one.target for one in molecules]))


class Network(nn.Module):
    """One round of messages, and a readout."""

    def __init__(self):
        super().__init__()
        self.embed, self.message, self.out = nn.Linear(33, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, atoms, bonds, charges):
        hidden = F.relu(self.embed(torch.cat([atoms, charges[..., None]], -1)))
        sources = hidden.gather(1, bonds[..., :1].expand(-1, -1, 64))
        hidden = hidden.scatter_add(1, bonds[..., 1:].expand(-1, -1, 64), F.relu(self.message(sources)))
        return self.out(hidden.sum(1)).squeeze(1)


def main():
    """Train."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    collate = joined if REMEDY else list
    loader = DataLoader(Molecules(256), batch_size=32, shuffle=True, num_workers=1, collate_fn=collate)
    start = time.perf_counter()
    for _ in range(2):
        for batch in loader:
            atoms, bonds, charges, targets = batch if REMEDY else joined(batch)
            loss = F.mse_loss(model(atoms, bonds, charges), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
