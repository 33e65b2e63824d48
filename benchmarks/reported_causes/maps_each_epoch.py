"""After each epoch, the validation draws all fields as pictures and compresses them.

Report: m2lines/Samudra, issue 456.
"""

import os
import struct
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class OceanModel(nn.Module):
    """The fields of the next day."""

    def __init__(self, num_fields):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(num_fields, 32, 3, padding=1), nn.GELU(),
                                 nn.Conv2d(32, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, num_fields, 1))

    def forward(self, fields):
        return fields + self.net(fields)


def colored(field):
    """Return a field as an RGB picture."""
    low, high = field.min(), field.max()
    scaled = (field - low) / (high - low + 1e-9)
    stops = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=float)
    channels = [np.interp(scaled, np.linspace(0, 1, len(stops)), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).repeat(4, 0).repeat(4, 1).astype(np.uint8)


def save_png(path, picture):
    """Write a picture."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = picture.shape
    lines = b"".join(b"\0" + line.tobytes() for line in picture)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6))
                     + chunk(b"IEND", b""))


def validate(model, fields, targets, folder, *, draw):
    """Return the error on unseen days; draw predictions and errors of all fields."""
    model.eval()
    with torch.no_grad():
        predictions = model(fields)
    if draw:
        for name, values in (("prediction", predictions), ("error", predictions - targets)):
            for number, field in enumerate(values[0].numpy()):
                save_png(folder / f"{name}-{number}.png", colored(field))
    model.train()
    return F.mse_loss(predictions, targets).item()


def main():
    """Train the model."""
    torch.manual_seed(0)
    model = OceanModel(8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    days = torch.randn(40, 8, 48, 96).cumsum(0)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        for epoch in range(24):
            for first in range(0, 32, 4):
                fields, targets = days[first:first + 4], days[first + 1:first + 5]
                loss = F.mse_loss(model(fields), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            error = validate(model, days[33:37], days[34:38], Path(name), draw=not REMEDY or epoch == 23)
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}, error {error:.3f}")


main()
