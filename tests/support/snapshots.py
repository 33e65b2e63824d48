"""Memory snapshots of a synthetic allocator, as `torch.cuda.memory._snapshot` returns them, and a replay by hand."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charact.record.writer import RunWriter
from charact.traces.snapshots.memory_snapshots import read_snapshot
from charact.traces.snapshots.snapshot_cases import snapshot_cases

KIB = 1 << 10
MIB = 1 << 20
TRAIN = [("/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", 117, "forward"),
         ("/job/train.py", 30, "step"), ("/job/train.py", 90, "<module>")]


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    """Return a stack, the innermost line first."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in lines]


@dataclass
class Allocator:
    """An allocator of one device: each call adds an event and changes the state as PyTorch's allocator would.

    Sizes of blocks are rounded up to 512 B. `blocks` has what is allocated: address -> (requested size, size, frames).
    """

    device: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    blocks: dict[int, tuple[int, int, list[dict[str, Any]]]] = field(default_factory=dict)
    awaiting: dict[int, int] = field(default_factory=dict)
    segments: dict[int, int] = field(default_factory=dict)
    time_us: float = 1.7e15
    records: bool = True

    def add(self, action: str, size: int, **values: Any) -> None:
        """Add an event, a microsecond after the one before."""
        self.time_us += 1
        if self.records:
            self.events.append({"action": action, "size": size, "stream": 0, "time_us": self.time_us,
                                "compile_context": "N/A", "user_metadata": "", **values})

    def segment(self, address: int, size: int, action: str = "segment_alloc") -> None:
        self.segments[address] = size
        self.add(action, size, addr=address)

    def release(self, address: int, action: str = "segment_free") -> None:
        self.add(action, self.segments.pop(address), addr=address)

    def alloc(self, address: int, size: int, *lines: tuple[str, int, str]) -> None:
        self.blocks[address] = size, -(-size // 512) * 512, frames(*(lines or TRAIN))
        self.add("alloc", size, addr=address, frames=self.blocks[address][2])

    def free(self, address: int, *, completes: bool = True) -> None:
        size, rounded, _ = self.blocks.pop(address)
        self.add("free_requested", size, addr=address, frames=frames(("/job/train.py", 99, "free")))
        if completes:
            self.add("free_completed", size, addr=address)
        else:
            self.awaiting[address] = rounded

    def out_of_memory(self, size: int, free_bytes: int) -> None:
        self.add("oom", size, device_free=free_bytes, frames=frames(*TRAIN))

    def state(self) -> list[dict[str, Any]]:
        """Return the segments with their blocks."""
        return [self._segment(address, size) for address, size in self.segments.items()]

    def _segment(self, start: int, size: int) -> dict[str, Any]:
        held = [(address, rounded, requested, "active_allocated", stack)
                for address, (requested, rounded, stack) in self.blocks.items() if start <= address < start + size]
        held += [(address, rounded, 0, "active_pending_free", []) for address, rounded in self.awaiting.items()
                 if start <= address < start + size]
        blocks, reached = [], start
        for address, rounded, requested, state, stack in sorted(held, key=lambda each: each[0]):
            blocks += _free(reached, address)
            blocks.append({"address": address, "size": rounded, "requested_size": requested, "state": state,
                           "frames": stack})
            reached = address + rounded
        return {"device": self.device, "address": start, "total_size": size, "stream": 0, "segment_type": "large",
                "segment_pool_id": [0, 0], "is_expandable": False, "frames": [],
                "blocks": [*blocks, *_free(reached, start + size)]}


def _free(start: int, end: int) -> list[dict[str, Any]]:
    return [{"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}] \
        if end > start else []


def training() -> Allocator:
    """Return the allocator of a program whose peak is 6 MiB + 1000 B of requested memory, in 8 MiB.

    A block of 1 MiB is from before the history. At the end, 3 MiB are allocated, and 1 MiB awaits its free.
    """
    made = Allocator(records=False)
    made.segment(0x1000000, 4 * MIB)
    made.alloc(0x1000000, MIB, ("/job/model.py", 5, "<module>"))
    made.records = True
    made.alloc(0x1100000, 2 * MIB)
    made.segment(0x2000000, 4 * MIB)
    made.alloc(0x2000000, 3 * MIB, ("/usr/lib/python3/dist-packages/torch/autograd/graph.py", 8, "run"),
               ("/job/train.py", 41, "backward"))
    made.alloc(0x2300000, 1000)  # the peak
    made.out_of_memory(64 * MIB, 12 * MIB)
    made.free(0x2300000)
    made.free(0x2000000)
    made.alloc(0x2000000, MIB)
    made.free(0x2000000, completes=False)
    return made


def snapshot(*allocators: Allocator, **outside: Any) -> dict[str, Any]:
    """Return a snapshot of the devices of these allocators."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(1 + max(each.device for each in allocators))]
    for each in allocators:
        traces[each.device] = each.events
    return {"segments": [segment for each in allocators for segment in each.state()], "device_traces": traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": []} | outside


def write(path: Path, content: Any) -> Path:
    """Write a snapshot as JSON, packed if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def curve_by_hand(events: list[dict[str, Any]], segments: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return allocated and reserved bytes before the first event and after each one, from the end backward.

    Each moment is computed anew from the final state: the events after it are undone, one at a time.
    """
    curve = []
    for position in range(len(events) + 1):
        allocated = {block["address"]: block["requested_size"] for segment in segments for block in segment["blocks"]
                     if block["state"] == "active_allocated"}
        reserved = sum(segment["total_size"] for segment in segments)
        for event in reversed(events[position:]):
            if event["action"] == "alloc":
                del allocated[event["addr"]]
            elif event["action"] == "free_requested":
                allocated[event["addr"]] = event["size"]
            elif event["action"] in ("segment_alloc", "segment_map"):
                reserved -= event["size"]
            elif event["action"] in ("segment_free", "segment_unmap"):
                reserved += event["size"]
        curve.append((sum(allocated.values()), reserved))
    return curve


def write_run(out: Path) -> Path:
    """Write the run of `charact import` of a snapshot of two devices, of which one has no history."""
    one, other = training(), training()
    other.device, other.events = 1, []
    path = write(out / "snapshot.json", snapshot(one, other))
    writer = RunWriter(out, "snapshot", {"options": {"snapshots": ["snapshot.json"]}})
    for entry, tables in snapshot_cases(read_snapshot(path), "snapshot"):
        writer.add_case(entry, tables)
    writer.close("complete")
    return writer.publish()
