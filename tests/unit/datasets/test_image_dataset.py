"""Samples as a workload gets them: shapes, values, determinism, workers, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from charact.core.errors import UserError
from charact.core.plugins import modules_in
from charact.datasets._common.registry import all_datasets
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import Split, StoredDatasetSpec
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


def test_an_unknown_dataset_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown dataset 'mnits': did you mean mnist"):
        image_dataset(DataRequest("mnits"), input_size=8, num_synthetic_classes=10)
    with pytest.raises(UserError, match=r"unknown dataset 'qq': choose from .*cifar10, .*synthetic"):
        image_dataset(DataRequest("qq"), input_size=8, num_synthetic_classes=10)


@pytest.mark.parametrize("name", [spec.name for spec in all_datasets().values() if spec.kind == "image"])
def test_files_need_a_directory(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is read from files: name their directory with --data-dir"):
        image_dataset(DataRequest(name), input_size=8, num_synthetic_classes=10)


def test_a_dataset_of_another_kind_is_refused_with_those_that_fit() -> None:
    with pytest.raises(UserError, match=r"wikitext2 has language_model data, this workload reads image data: choose "
                                        r"from cifar10, mnist, fashion_mnist, kmnist, synthetic$"):
        image_dataset(DataRequest("wikitext2"), input_size=8, num_synthetic_classes=10)


def test_a_split_that_was_not_published_is_refused() -> None:
    with pytest.raises(UserError, match="mnist has no split 'valid': choose from train, test"):
        image_dataset(DataRequest("mnist", split="valid"), input_size=8, num_synthetic_classes=10)


def test_names_are_unique_and_every_file_to_fetch_has_its_size_and_checksum() -> None:
    listed = [spec for module in modules_in("charact.datasets") for spec in module.DATASETS]
    assert {"synthetic", "cifar10", "mnist", "fashion_mnist", "kmnist"} <= all_datasets().keys()
    assert len(listed) == len(all_datasets())
    for spec in listed:
        assert spec.description
        if isinstance(spec, StoredDatasetSpec):
            assert spec.source.startswith("http")
            assert spec.source.endswith("/")
            assert all(re.fullmatch("[0-9a-f]{32}|[0-9a-f]{64}", file.checksum) for file in spec.files if file.checksum)
            for file in spec.files:
                # No checksum of Tatoeba's archive was published, which grows.
                if file.splits and spec.name != "tatoeba":
                    assert file.num_bytes
                    assert file.checksum
                    assert len(file.checksum) == 64
                    # CBTest's publisher has no https.
                    assert spec.source.startswith("https://") or spec.name.startswith("cbtest")
        if spec.kind == "image":  # of text, counts of lines and words were published instead
            assert all(file.checksum or file.num_bytes for file in spec.files)


def test_listing_imports_no_torch() -> None:
    check = ("import sys; from charact.datasets._common.registry import all_datasets; all_datasets()\n"
             "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
