"""A recognizer loads its weights from disk for each picture.

Report: Canjie-Luo/MORAN_v2, issue 49.
"""

import os
import tempfile
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Recognizer(nn.Module):
    """Letters of a picture of a word."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(),
                                      nn.AdaptiveAvgPool2d((1, 25)))
        self.sequence = nn.LSTM(128, 768, 2, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(1536, 37)

    def forward(self, picture):
        columns = self.features(picture)[:, :, 0].transpose(1, 2)
        return self.letters(self.sequence(columns)[0])


def load(path):
    """Return a recognizer with the weights of a file."""
    model = Recognizer()
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


torch.manual_seed(0)
path = os.path.join(tempfile.mkdtemp(), "recognizer.pt")
torch.save(Recognizer().state_dict(), path)
kept = load(path) if REMEDY else None
start = time.perf_counter()
words = []
for _ in range(40):
    picture = torch.rand(1, 1, 32, 100)
    model = kept or load(path)
    with torch.no_grad():
        words.append(model(picture).argmax(-1))
print(f"loop: {time.perf_counter() - start:.3f} s, {len(words)} words")
