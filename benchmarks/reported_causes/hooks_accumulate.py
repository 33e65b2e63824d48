"""Each new token registers hooks on the adapters again, and only those of the last token are removed.

Report: huggingface/peft, pull request 2761 (from issue 1472).
"""

import os
import time
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


class Adapted(nn.Module):
    """A layer with adapters of low rank, weighted by scalings."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(96, 96)
        self.down, self.up = nn.Parameter(torch.randn(4, 96, 8) / 10), nn.Parameter(torch.randn(4, 8, 96) / 10)

    def forward(self, x, scalings):
        adapted = torch.einsum("ba,bi,air,aro->bo", scalings, x, self.down, self.up)
        return self.base(x) + adapted


def insert_scalings(scalings, layer, inputs):
    """Replace the scalings in the inputs of a layer."""
    return inputs[0], scalings


class Model(nn.Module):
    """A recurrent language model of adapted layers, whose scalings depend on the state."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head, self.classifier = nn.Embedding(300, 96), nn.Linear(96, 300), nn.Linear(96, 4)
        self.layers = nn.ModuleList(Adapted() for _ in range(6))
        self.handles = []

    def forward(self, ids, state):
        scalings = self.classifier(state).softmax(-1)
        self.handles = [layer.register_forward_pre_hook(partial(insert_scalings, scalings)) for layer in self.layers]
        x = self.tokens(ids) + state
        for layer in self.layers:
            x = x + torch.tanh(layer(x, None))
        if REMEDY:
            self.remove_hooks()
        return self.head(x), F.normalize(x, dim=-1)

    def remove_hooks(self):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def generate(model, ids, num_tokens):
    """Return new ids."""
    state, chosen = torch.zeros(len(ids), 96), [ids]
    for _ in range(num_tokens):
        logits, state = model(chosen[-1], state)
        chosen.append(torch.multinomial(logits.softmax(-1), 1).squeeze(1))
    model.remove_hooks()
    return torch.stack(chosen, 1)


torch.manual_seed(0)
model = Model().eval()
start = time.perf_counter()
for _ in range(16):
    ids = generate(model, torch.randint(0, 300, (8,)), 150)
print(f"loop: {time.perf_counter() - start:.3f} s, {ids.shape[1]} tokens")
