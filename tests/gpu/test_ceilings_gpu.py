"""Ceilings of a CUDA device against its maker's figures and against an independent clock."""

from statistics import median

import pytest
import torch
from torch.utils.benchmark import Timer

from charact.machine.ceilings_cache import Ceiling
from charact.measure.microbench.ceilings import measure_ceilings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def rows() -> list[Ceiling]:
    before = torch.cuda.memory_allocated()
    rows = measure_ceilings(torch.device("cuda", 0))
    assert torch.cuda.memory_allocated() == before
    return rows


def value(rows: list[Ceiling], ceiling: str, key: str | None) -> float:
    return next(row["value"] for row in rows if row["ceiling"] == ceiling and key in (row["precision"], row["level"]))


def test_every_kind_is_measured(rows: list[Ceiling]) -> None:
    assert {row["ceiling"] for row in rows} == {"gemm", "copy", "triad", "launch", "host_to_device", "device_to_host"}
    assert all(0 < row["low"] <= row["value"] <= row["high"] for row in rows)


def test_no_more_than_the_datasheet_is_reached_and_a_good_part_of_it(rows: list[Ceiling]) -> None:
    stated = [row for row in rows if row["datasheet"] is not None]
    if not stated:
        pytest.skip("no datasheet of this device is known")
    for row in stated:
        assert row["datasheet"] is not None
        assert 0.4 < row["value"] / row["datasheet"] < 1.02, row


def test_the_datasheets_bandwidth_is_what_the_driver_tells(rows: list[Ceiling]) -> None:
    row = next(row for row in rows if row["ceiling"] == "copy" and row["level"] == "memory")
    if row["datasheet"] is None or row["theoretical"] is None:
        pytest.skip("one of the two is not known")
    assert row["theoretical"] == pytest.approx(row["datasheet"], rel=0.05)


def test_lower_precisions_are_faster(rows: list[Ceiling]) -> None:
    assert value(rows, "gemm", "fp16") > value(rows, "gemm", "fp32")
    if torch.cuda.get_device_capability() >= (8, 0):
        assert value(rows, "gemm", "bf16") > value(rows, "gemm", "tf32")


def test_a_product_measured_otherwise_is_not_above_its_ceiling(rows: list[Ceiling]) -> None:
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    right = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    timer = Timer("left @ right", globals={"left": left, "right": right})
    rate = 2 * 4096**3 / median(timer.timeit(20).mean for _ in range(9))
    assert 0.5 < rate / value(rows, "gemm", "fp16") < 1.1


def test_the_cache_is_faster_than_memory_and_memory_than_the_bus(rows: list[Ceiling]) -> None:
    assert value(rows, "copy", "L2") > value(rows, "copy", "memory") > value(rows, "host_to_device", None)


def test_a_launch_takes_microseconds_of_the_host_not_of_the_device(rows: list[Ceiling]) -> None:
    tiny = torch.zeros(1, device="cuda")
    independent = Timer("tiny.add_(tiny)", globals={"tiny": tiny}).timeit(500).mean
    assert value(rows, "launch", None) < 2 * independent
