"""Replays and the caching allocator: against a naive one, and where a real one put blocks on an H100."""

import gzip
import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.memory_curve import Block
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op
from charact.measure.memory_estimate.replay import CachingAllocator, HostAllocator, replay

TRACES = Path(__file__).parents[5] / "shared" / "traces"
MIB = 2**20


@pytest.mark.parametrize(("num_bytes", "allocated", "reserved"), [
    (0, 0, 0),
    (1, 512, 2 * MIB),
    (512, 512, 2 * MIB),
    (513, 1024, 2 * MIB),
    (MIB, MIB, 2 * MIB),  # the largest of the small
    (MIB + 1, MIB + 512, 20 * MIB),
    (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB, 10 * MIB),  # has a segment of its own
    (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is left of 12: too little to be cut off
    (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
    (19 * MIB, 20 * MIB, 20 * MIB),
])
def test_a_first_request_is_rounded_and_reserves_a_segment(num_bytes: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    handle = allocator.allocate(num_bytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)
    assert allocator.size_of(handle) == allocated
    allocator.free(handle)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, reserved)


class NaiveAllocator:
    """The same rules, with segments as lists of [address, size, is free]: every search looks at everything."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int]]]] = []
        self.reserved_bytes = 0

    @property
    def allocated_bytes(self) -> int:
        return sum(size for _, parts in self.segments for _, size, is_free in parts if not is_free)

    def allocate(self, num_bytes: int) -> int:
        size = math.ceil(num_bytes / 512) * 512
        is_small = size <= MIB
        fitting = [(part[1], part[0], parts, part) for of_small, parts in self.segments if of_small == is_small
                   for part in parts if part[2] and part[1] >= size]
        if fitting:
            _, _, parts, part = min(fitting, key=lambda found: found[:2])
        else:
            reserved = 2 * MIB if is_small else 20 * MIB if size < 10 * MIB else math.ceil(size / (2 * MIB)) * 2 * MIB
            part = [self.reserved_bytes, reserved, True]
            parts = [part]
            self.segments.append((is_small, parts))
            self.reserved_bytes += reserved
        left = part[1] - size
        if left > (0 if is_small else MIB):
            parts.insert(parts.index(part) + 1, [part[0] + size, left, True])
            part[1] = size
        part[2] = False
        return part[0]

    def free(self, address: int) -> None:
        for _, parts in self.segments:
            for part in parts:
                part[2] |= part[0] == address
            for first, second in reversed(list(itertools.pairwise(parts))):
                if first[2] and second[2]:
                    first[1] += second[1]
                    parts.remove(second)


SIZES = st.one_of(st.sampled_from([1, 512, MIB // 2, MIB, MIB + 1, 4 * MIB, 12 * MIB, 19 * MIB, 20 * MIB, 40 * MIB]),
                  st.integers(1, 3 * 512), st.integers(1, 3 * MIB), st.integers(1, 60 * MIB))
STEPS = st.lists(st.tuples(st.integers(0, 2), SIZES, st.integers(0, 10**6)), max_size=80)


@given(STEPS)
def test_blocks_lie_where_a_naive_allocator_puts_them(steps: list[tuple[int, int, int]]) -> None:
    allocator, naive, live = CachingAllocator(), NaiveAllocator(), list[int]()
    for kind, num_bytes, choice in steps:
        if kind:
            live.append(allocator.allocate(num_bytes))
            assert live[-1] == naive.allocate(num_bytes)
            assert num_bytes <= allocator.size_of(live[-1]) < num_bytes + MIB + 512
        elif live:
            handle = live.pop(choice % len(live))
            allocator.free(handle)
            naive.free(handle)
        assert allocator.allocated_bytes == naive.allocated_bytes
        assert allocator.reserved_bytes == naive.reserved_bytes


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3 * MIB), st.integers(0, 10**6)), max_size=40))
def test_a_replay_is_the_sum_of_the_blocks_in_use_and_the_workspace(steps: list[tuple[int, int, int]]) -> None:
    trace, workspaces, live = AllocationTrace(), [], []
    held, reserved = [], 0
    naive, addresses = NaiveAllocator(), dict[int, int]()
    trace.blocks.append(Block(100, "weights"))
    addresses[0] = naive.allocate(100)
    in_use = 100
    for kind, num_bytes, choice in steps:
        if kind == 0:
            live.append(len(trace.blocks))
            trace.blocks.append(Block(num_bytes, phase="forward", birth=trace.next_moment()))
            addresses[live[-1]] = naive.allocate(num_bytes)
            in_use += num_bytes
        elif kind == 1 and live:
            number = live.pop(choice % len(live))
            trace.blocks[number].death = trace.next_moment()
            naive.free(addresses.pop(number))
            in_use -= trace.blocks[number].num_bytes
        else:
            trace.ops.append(Op("aten::mm", "forward", None, end=trace.next_moment()))
            workspaces.append(num_bytes)
            workspace = naive.allocate(num_bytes)
            held.append((in_use + num_bytes, naive.allocated_bytes))
            naive.free(workspace)
            reserved = naive.reserved_bytes
    for allocator, expected in ((HostAllocator(), [total for total, _ in held]),
                                (CachingAllocator(), [total for _, total in held])):
        curve, peak_reserved = replay(trace, allocator, workspaces)
        assert [snapshot.total_bytes for snapshot in curve.snapshots] == expected
        assert all(sum(snapshot.held.values()) == snapshot.total_bytes for snapshot in curve.snapshots)
    assert peak_reserved == (reserved or None)


def prepared(segments: list[list[int]]) -> tuple[CachingAllocator, list[int]]:
    """An allocator with segments of 2 or 20 MiB, and their addresses; each is stretches that are held, free, held..."""
    allocator, addresses, spare = CachingAllocator(), [], list[int]()
    for stretches in segments:
        addresses.append(allocator.reserved_bytes)
        for number, stretch in enumerate(stretches):
            left = stretch
            while left:
                # No more than half a segment at a time, so that the first makes one and all others fill it.
                handle = allocator.allocate(min(left, sum(stretches) // 2 - 512))
                left -= allocator.size_of(handle)
                if number % 2:
                    spare.append(handle)
    for handle in spare:
        allocator.free(handle)
    return allocator, addresses


# Segments begin where addresses are whole multiples of 2 MiB. What the trace does not touch was held all the while; of
# the second stretch in ViT's last segment, which it uses in part, the end follows from what did not go there.
@pytest.mark.skipif(not TRACES.is_dir(), reason="needs recorded traces in ../shared/traces")
@pytest.mark.parametrize(("name", "segments"), [
    ("h100_bert_small_infer", {
        0x749083C00000: [0, 2 * MIB], 0x749476000000: [0x180000, 0x80000], 0x749476E00000: [0, 2 * MIB],
        0x74953A000000: [0, 20 * MIB], 0x74954DE00000: [0x1A0E00, 0x5F200]}),
    ("h100_vit_infer", {
        0x7BC476000000: [0, 20 * MIB], 0x7BC489E00000: [0x86400, 0x179C00],
        0x7BC6D2000000: [0xB40000, 0x230000, 0x142000, 0x54E000]}),
])
def test_blocks_lie_where_pytorch_put_them_on_an_h100(name: str, segments: dict[int, list[int]]) -> None:
    with gzip.open(TRACES / f"{name}.json.gz") as file:
        instants = [event["args"] for event in json.load(file)["traceEvents"] if event.get("name") == "[memory]"]
    events = sorted((event for event in instants if event["Device Type"] == 1), key=lambda event: event["Ev Idx"])
    allocator, addresses = prepared(list(segments.values()))
    base = allocator.allocated_bytes
    real_base = events[0]["Total Allocated"] - events[0]["Bytes"]
    place_of = dict(zip(segments, addresses, strict=True))
    handles: dict[int, int] = {}
    for event in events:
        real, num_bytes = event["Addr"], event["Bytes"]
        if num_bytes < 0:
            allocator.free(handles.pop(real))
        else:
            handles[real] = allocator.allocate(num_bytes)
            segment = max(start for start in segments if start <= real)
            assert handles[real] - place_of[segment] == real - segment
        assert allocator.allocated_bytes - base == event["Total Allocated"] - real_base
    assert len(events) > 200
