"""The class token of each batch is stored as a view, which keeps the outputs of all tokens in memory.

Report: ViCCo-Group/thingsvision, pull request 150 (also flairNLP/flair, pull request 1089).
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Encoder(nn.Module):
    """A vision transformer of one layer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 8, stride=8)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 256))
        self.layer = nn.TransformerEncoderLayer(256, 4, 256, batch_first=True)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.layer(torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1))


def extract(model, num_batches):
    """Return the class tokens of all images."""
    features = []
    for _ in range(num_batches):
        outputs = model(torch.rand(136, 3, 128, 128))
        token = outputs[:, 0]
        features.append(token.clone() if REMEDY else token)
    return torch.cat(features)


torch.manual_seed(0)
model = Encoder().eval()
start = time.perf_counter()
with torch.no_grad():
    features = extract(model, 10)
print(f"loop: {time.perf_counter() - start:.3f} s, {len(features)} features")
