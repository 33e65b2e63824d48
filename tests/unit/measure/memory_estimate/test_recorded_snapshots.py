"""The allocator and the trace of a program, against recorded CUDA memory snapshots of others' programs."""

from collections import Counter
from pathlib import Path
from typing import Any

import memory_snapshots
import pytest
import torch

from charact import memory
from charact.measure.memory_estimate.replay import CachingAllocator

SNAPSHOTS = Path(__file__).resolve().parents[5] / "shared" / "memory"
NAMES = ("cuda_medium_128_inference", "cuda_medium_256_inference", "cuda_medium_512_inference",
         "cuda_medium_128_training", "cuda_medium_512_training", "cuda_medium_1024_training", "cuda_other_1")

recorded_only = pytest.mark.skipif(not SNAPSHOTS.is_dir(), reason="needs recorded snapshots in ../shared/memory")


@pytest.fixture(autouse=True)
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_snapshots, "SNAPSHOTS", SNAPSHOTS)


def in_use(snapshot: dict[str, Any]) -> list[list[Any]]:
    return [block for segment in snapshot["segments_at_end"] for block in segment["blocks"]
            if block[2] == "active_allocated"]


def replayed(snapshot: dict[str, Any]) -> CachingAllocator:
    """Replay the events; blocks from before the first event are allocated first, in an order that is not known."""
    allocator, handles = CachingAllocator(), {}
    old: dict[int, list[int]] = {}
    in_trace = {event[1]: event[2] for event in snapshot["events"] if event[0] == "a"}
    for event in snapshot["events"]:
        if event[0] == "f":
            del in_trace[event[1]]
    before = Counter(requested for _, requested, _ in in_use(snapshot)) - Counter(in_trace.values())
    for num_bytes in before.elements():
        allocator.allocate(num_bytes)
    for kind, _, num_bytes, *_ in snapshot["events"]:
        if kind == "o":
            old.setdefault(num_bytes, []).append(allocator.allocate(num_bytes))
    for kind, number, num_bytes, *_ in snapshot["events"]:
        if kind == "a":
            handles[number] = allocator.allocate(num_bytes)
        elif kind == "f":
            allocator.free(handles.pop(number))
        elif kind == "o":
            allocator.free(old[num_bytes].pop())
    return allocator


@recorded_only
@pytest.mark.parametrize("name", NAMES)
def test_the_allocator_reserves_and_allocates_as_recorded(name: str) -> None:
    snapshot = memory_snapshots.recorded(name)
    allocator = replayed(snapshot)
    reserved = sum(segment["total"] for segment in snapshot["segments_at_end"])
    allocated = sum(size for size, _, _ in in_use(snapshot))
    # Where blocks from before the first event lie is not recorded, so others may be cut from larger ones.
    assert allocator.reserved_bytes == pytest.approx(reserved, rel=0.005)
    assert allocator.allocated_bytes == pytest.approx(allocated, rel=0.001)
    if "training" not in name:
        assert (allocator.reserved_bytes, allocator.allocated_bytes) == (reserved, allocated)


@recorded_only
@pytest.mark.parametrize(("name", "length", "precision"), [
    ("cuda_medium_256_inference", 256, None),
    pytest.param("cuda_medium_512_inference", 512, torch.bfloat16, marks=pytest.mark.slow),
    pytest.param("cuda_medium_128_training", 128, None, marks=pytest.mark.slow),
    pytest.param("cuda_medium_512_training", 512, torch.bfloat16, marks=pytest.mark.slow),
])
def test_a_program_requests_the_same_tensors_and_has_the_same_peak(name: str, length: int,
                                                                   precision: torch.dtype | None) -> None:
    snapshot = memory_snapshots.recorded(name)
    trains = name.endswith("training")
    build = memory_snapshots.program(length, trains=trains, precision=precision)
    ours = [num_bytes for num_bytes, _ in memory_snapshots.estimated_requests(build)]
    differing = memory_snapshots.differences(memory_snapshots.recorded_requests(snapshot), ours)
    assert [estimated for _, _, estimated in differing if estimated] == []
    # What only the real device requests: partial sums with one semaphore per block, and sorted indices.
    workspaces = {(), (16 * 2**20, 32), *((40 // 8 * (8 * 4 * length,)) + (size,) for size in (1, 32))}
    assert {tuple(only) for _, only, _ in differing} <= workspaces | {()}
    estimate, peak = memory.estimate(build, device="a100-80gb"), memory_snapshots.recorded_peak(snapshot)
    assert estimate.peak_bytes == pytest.approx(peak, rel=0.001)
    assert estimate.low_bytes <= peak <= estimate.high_bytes


def test_differences_are_aligned() -> None:
    theirs = [1, 2, 3, 9, 9, 4, 5, 6, 7]
    ours = [1, 2, 3, 4, 5, 8, 6, 7]
    assert memory_snapshots.differences(theirs, ours, 2) == [(3, [9, 9], []), (7, [], [8])]
    assert memory_snapshots.differences(theirs, theirs) == []
    assert memory_snapshots.differences([1, 2], [1], 2) == [(1, [2], [])]
