"""The mapper copies a record with all its run-length masks in depth, although it changes a few of its entries.

Report: facebookresearch/detectron2, issue 939.
"""

import copy
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))
SIDE, NUM_CLASSES = 96, 5


def copied(record):
    """Return a record that may be changed."""
    if REMEDY:
        return record | {"annotations": [dict(annotation) for annotation in record["annotations"]]}
    return copy.deepcopy(record)


class Mapper:
    """From a record to an image and its class map."""

    def __init__(self, images):
        self.images = images

    def __call__(self, record):
        record = copied(record)
        image = self.images[record.pop("image_id")].float() / 255
        flipped = torch.rand(()) < 0.5
        classes = np.zeros(SIDE * SIDE, dtype=np.int64)
        for annotation in record.pop("annotations"):
            counts = annotation.pop("counts")
            inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
            classes[inside] = annotation["category_id"]
        record["image"] = image.flip(2) if flipped else image
        classes = torch.from_numpy(classes).reshape(SIDE, SIDE)
        record["classes"] = classes.flip(1) if flipped else classes
        return record


class MappedDataset(Dataset):
    """Records, each mapped when it is fetched."""

    def __init__(self, records, mapper):
        self.records, self.mapper = records, mapper

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.mapper(self.records[index])


def make_records(num_images):
    """Return a record with 16 masks for each image."""
    source = np.random.default_rng(0)
    records = []
    for image_id in range(num_images):
        annotations = []
        for _ in range(16):
            cuts = np.sort(source.choice(np.arange(1, SIDE * SIDE), 199, replace=False))
            counts = np.diff(np.concatenate([[0], cuts, [SIDE * SIDE]])).tolist()
            annotations.append({"category_id": int(source.integers(1, NUM_CLASSES)), "counts": counts, "iscrowd": 0})
        records.append({"image_id": image_id, "height": SIDE, "width": SIDE, "annotations": annotations})
    return records


def main():
    """Train a small segmentation network."""
    torch.manual_seed(0)
    images = torch.randint(0, 256, (320, 3, SIDE, SIDE), dtype=torch.uint8)
    loader = DataLoader(MappedDataset(make_records(len(images)), Mapper(images)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(32, NUM_CLASSES, 1), nn.Upsample(scale_factor=2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    start = time.perf_counter()
    for _ in range(5):
        for batch in loader:
            loss = F.cross_entropy(model(batch["image"]), batch["classes"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
