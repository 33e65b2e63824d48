"""Samples as a workload gets them: shapes, values, determinism, workers, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import Split
from charact.datasets._samples.images import ImageDataset, StoredImages, image_dataset


def synthetic(input_size: int = 8, seed: int = 0, split: Split = "train", num_classes: int = 10) -> ImageDataset:
    request = DataRequest(seed=seed, split=split)
    return image_dataset(request, input_size=input_size, num_synthetic_classes=num_classes)


def test_synthetic_samples_are_uniform_noise_over_all_classes() -> None:
    dataset = synthetic(input_size=64, num_classes=7)
    assert dataset.num_classes == 7
    assert len(dataset) == 50_000
    image, label = dataset[0]
    assert (image.shape, image.dtype, type(label)) == ((3, 64, 64), torch.float32, int)
    assert 0 <= image.min() < 0.01
    assert 0.99 < image.max() < 1
    assert image.mean() == pytest.approx(0.5, abs=0.02)
    assert {dataset[index][1] for index in range(200)} == set(range(7))


def test_synthetic_samples_depend_on_seed_split_and_index_alone() -> None:
    def first_value(dataset: ImageDataset, index: int) -> float:
        return dataset[index][0][0, 0, 0].item()

    assert first_value(synthetic(), 3) == first_value(synthetic(), 3)
    others = [first_value(synthetic(), 3), first_value(synthetic(), 4), first_value(synthetic(seed=1), 3),
              first_value(synthetic(split="test"), 3), first_value(synthetic(split="valid"), 3),
              first_value(synthetic(seed=2**32), 3)]
    assert len(set(others)) == 6


@pytest.mark.parametrize("index", [-1, 10_000])
def test_synthetic_samples_end_with_the_split(index: int) -> None:
    with pytest.raises(IndexError):
        synthetic(split="test")[index]


# Python 3.12 warns of every fork beside torch's threads, torch of more workers than cores.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("stored", [False, True])
def test_workers_fetch_the_same_samples(stored: bool) -> None:
    pictures = np.arange(16 * 28 * 28, dtype=np.uint32).reshape(16, 28, 28).astype(np.uint8)
    dataset = StoredImages(pictures, np.arange(16) % 4, 8, num_classes=4) if stored else synthetic()
    batches = [next(iter(DataLoader(dataset, batch_size=16, num_workers=workers))) for workers in (0, 2)]
    assert torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][1], batches[1][1])
    assert (batches[0][0].shape, batches[0][1].dtype) == ((16, 3, 8, 8), torch.int64)


def test_grey_pictures_get_three_equal_channels_and_are_scaled_bilinearly() -> None:
    picture = np.array([[[0, 255], [0, 255]]], dtype=np.uint8)
    image, label = StoredImages(picture, np.array([3]), 4, num_classes=10)[0]
    # Between pixel centres at 0.5 and 1.5 the value rises linearly: a quarter, then three quarters.
    assert torch.allclose(image, torch.tensor([0.0, 0.25, 0.75, 1.0]).expand(3, 4, 4), atol=1e-6)
    assert label == 3


def test_coloured_pictures_keep_their_channels() -> None:
    picture = np.repeat(np.array([10, 20, 30], dtype=np.uint8), 32 * 32).reshape(1, 3, 32, 32)
    image, _ = StoredImages(picture, np.array([0]), 48, num_classes=10)[0]
    assert torch.allclose(image, torch.tensor([10, 20, 30]).div(255)[:, None, None].expand(3, 48, 48))


def test_the_cases_of_a_sweep_share_the_pictures(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(30_730_000))
    request = DataRequest("cifar10", tmp_path, "test")
    small, large = (image_dataset(request, input_size=size, num_synthetic_classes=1000) for size in (32, 64))
    assert isinstance(small, StoredImages)
    assert isinstance(large, StoredImages)
    assert small.images is large.images
    assert (small.num_classes, small[0][0].shape, large[0][0].shape) == (10, (3, 32, 32), (3, 64, 64))


def test_listing_imports_no_torch() -> None:
    check = ("import sys; from charact.datasets._common.registry import all_datasets; all_datasets()\n"
             "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(("request_of", "reason"), [
    (DataRequest("mnits"), "unknown dataset 'mnits': did you mean mnist"),
    (DataRequest("qq"), "unknown dataset 'qq': choose from .*cifar10, .*synthetic"),
    (DataRequest("wikitext2"), "wikitext2 has language_model data, this workload reads image data: choose from "
                               "cifar10, mnist, fashion_mnist, kmnist, synthetic$"),
    (DataRequest("mnist", split="valid"), "mnist has no split 'valid': choose from train, test"),
    *((DataRequest(name), f"{name} is read from files: name their directory with --data-dir")
      for name in ("cifar10", "mnist", "fashion_mnist", "kmnist")),
])
def test_what_cannot_be_read_is_refused(request_of: DataRequest, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        image_dataset(request_of, input_size=8, num_synthetic_classes=10)
