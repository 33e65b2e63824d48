"""The boxes of a face detector are decoded anchor by anchor.

Report: elliottzheng/face-detection, pull request 8.
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Detector(nn.Module):
    """Scores and offsets of a grid of anchors."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
                                  nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.scores, self.offsets = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 4, 1)

    def forward(self, images):
        features = self.body(images)
        return self.scores(features).sigmoid(), self.offsets(features)


def decode(scores, offsets, stride, threshold):
    """Return the boxes of one image whose score is high enough."""
    height, width = scores.shape
    if REMEDY:
        rows, columns = torch.where(scores > threshold)
        x = (columns + 0.5) * stride + offsets[0, rows, columns]
        y = (rows + 0.5) * stride + offsets[1, rows, columns]
        w, h = stride * offsets[2, rows, columns].exp(), stride * offsets[3, rows, columns].exp()
        return torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, scores[rows, columns]], 1)
    boxes = []
    for row in range(height):
        for column in range(width):
            score = scores[row, column]
            if score > threshold:
                x = (column + 0.5) * stride + offsets[0, row, column]
                y = (row + 0.5) * stride + offsets[1, row, column]
                w, h = stride * offsets[2, row, column].exp(), stride * offsets[3, row, column].exp()
                boxes.append(torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, score]))
    return torch.stack(boxes) if boxes else torch.zeros(0, 5)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Detector().eval()
num_boxes = 0
start = time.perf_counter()
with torch.inference_mode():
    for _ in range(120):
        scores, offsets = model(torch.rand(4, 3, 224, 224))
        for index in range(len(scores)):
            limit = scores[index].quantile(0.9)
            num_boxes += len(decode(scores[index, 0], offsets[index], 8, limit))
print(f"loop: {time.perf_counter() - start:.3f} s, {num_boxes} boxes")
