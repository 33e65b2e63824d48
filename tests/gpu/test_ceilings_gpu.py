"""Ceilings of a CUDA device against its maker's figures and against an independent clock."""

from functools import partial

import pytest
import torch
from support.device_clocks import queued_s
from torch.utils.benchmark import Timer

from charact.execution.precision import float32_products, unsupported_reason
from charact.machine.ceilings_cache import Ceiling
from charact.measure.microbench.ceilings import measure_ceilings
from charact.measure.passes.memory_pass import released_workspaces

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def measured() -> tuple[list[Ceiling], int]:
    """The ceilings, and the bytes that their measurement leaves allocated."""
    released_workspaces(DEVICE)
    before = torch.cuda.memory_allocated()
    rows = measure_ceilings(DEVICE)
    released_workspaces(DEVICE)
    return rows, torch.cuda.memory_allocated() - before


@pytest.fixture(scope="module")
def rows(measured: tuple[list[Ceiling], int]) -> list[Ceiling]:
    return measured[0]


def test_no_memory_stays_allocated_but_cublas_s_own(measured: tuple[list[Ceiling], int]) -> None:
    assert measured[1] == 0


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


@pytest.mark.parametrize(("precision", "dtype"), [
    ("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_are_as_fast_as_the_fastest_of_our_own(
        rows: list[Ceiling], precision: str, dtype: torch.dtype) -> None:
    if precision in ("tf32", "bf16") and unsupported_reason(precision, DEVICE):
        pytest.skip("not on this device")
    rates = []
    with float32_products(precision):
        for side in (4096, 8192):
            left, right = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
            rates.append(2 * side**3 / queued_s(partial(torch.mm, left, right), 4))
    assert 0.93 < value(rows, "gemm", precision) / max(rates) < 1.10


def test_copies_are_as_fast_as_our_own(rows: list[Ceiling]) -> None:
    source = torch.ones(2**28, device=DEVICE)
    target = torch.empty_like(source)
    rate = 2 * source.nbytes / queued_s(partial(target.copy_, source), 4)
    assert value(rows, "copy", "memory") == pytest.approx(rate, rel=0.05)


def test_the_cache_is_faster_than_memory_and_memory_than_the_bus(rows: list[Ceiling]) -> None:
    assert value(rows, "copy", "L2") > value(rows, "copy", "memory") > value(rows, "host_to_device", None)


def test_a_launch_takes_microseconds_of_the_host_not_of_the_device(rows: list[Ceiling]) -> None:
    tiny = torch.zeros(1, device="cuda")
    independent = Timer("tiny.add_(tiny)", globals={"tiny": tiny}).timeit(500).mean
    assert 0.5 * independent < value(rows, "launch", None) < 2 * independent
