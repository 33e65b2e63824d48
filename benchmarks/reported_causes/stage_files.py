"""Each file of a checkpoint is given views of the buffer of all parameters, so that it holds the whole buffer.

Report: deepspeedai/DeepSpeed, pull request 1324 (also issue 3303).
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def flatten(model):
    """Move the parameters and gradients of a model into two flat buffers, and return the parameters' buffer."""
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    first = 0
    for parameter in parameters:
        last = first + parameter.numel()
        parameter.data = flat.data[first:last].view_as(parameter)
        parameter.grad = flat.grad[first:last].view_as(parameter)
        first = last
    return flat


def save_checkpoint(model, folder):
    """Write a file for each stage of the pipeline."""
    for index, stage in enumerate(model):
        state = stage.state_dict()
        if REMEDY:
            state = {name: value.clone() for name, value in state.items()}
        torch.save(state, folder / f"stage_{index:02}.pt")


def main():
    """Train a transformer of ten stages."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True) for _ in range(8)]
    model = nn.Sequential(nn.Embedding(4000, 128), *layers, nn.Linear(128, 4000))
    flat = flatten(model)
    optimizer = torch.optim.Adam([flat], 1e-4, fused=True)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        for step in range(1, 97):
            ids = torch.randint(0, 4000, (4, 33))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            if step % 6 == 0:
                save_checkpoint(model, Path(name))
        print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
