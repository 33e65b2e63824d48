"""Events of a trace: as in the file, and as stored."""

import os
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from charact.core.text import label
from charact.core.trace_marks import PHASE_PREFIX
from charact.record.schema import PHASES

MAX_NAME_LENGTH = 10_000


def clean(name: str) -> str:
    """Return a name of limited length without control characters and lone surrogates."""
    name = label(name)
    return f"{name[:MAX_NAME_LENGTH]}…" if len(name) > MAX_NAME_LENGTH else name


def readable(path: Path) -> str:
    """Return a path as text, whatever bytes its name has."""
    return clean(os.fsencode(path).decode("utf-8", "replace"))


Thread = tuple[int | str, int | str]
"""Process and thread, as in the trace."""

Geometry = tuple[str | None, str | None, int | None, int | None, float | None]
"""Grid and block as JSON, registers, shared memory, occupancy; on AMD devices the launch has it, not the kernel."""

BEFORE_ALL_NS = -(1 << 63)
"""Earlier than every timestamp; timestamps of a trace can be negative."""
STEP, OPTIMIZER, LOADER = "ProfilerStep#", "Optimizer.", "enumerate(DataLoader)"
_PHASE_MARKS = {PHASE_PREFIX + phase for phase in PHASES}
FORWARDS = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")


class Arguments(msgspec.Struct, gc=False):
    """Arguments of an event that are read; older profilers wrote some names in lower case."""

    external_id: int | None = msgspec.field(name="External id", default=None)
    old_external_id: int | None = msgspec.field(name="external id", default=None)
    correlation: int | None = None
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    old_shapes: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    device: int | str | None = None
    stream: int | str | None = None
    grid: msgspec.Raw = msgspec.Raw(b"")
    block: msgspec.Raw = msgspec.Raw(b"")
    registers: int | None = msgspec.field(name="registers per thread", default=None)
    shared_memory: int | None = msgspec.field(name="shared memory", default=None)
    occupancy_percent: float | None = msgspec.field(name="est. achieved occupancy %", default=None)
    warps_per_sm: float | None = msgspec.field(name="warps per SM", default=None)
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    data_type: Any = msgspec.field(name="dtype", default=None)
    num_in: Any = msgspec.field(name="In msg nelems", default=None)
    num_out: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    collective_sequence: Any = msgspec.field(name="Seq", default=None)


class Exchange(msgspec.Struct, gc=False, frozen=True):
    """What a collective exchanges, as the profiler recorded it; None for what it did not record."""

    operation: str
    group: str | None = None
    group_size: int | None = None
    num_bytes: int | None = None
    """Bytes of its inputs or of its outputs, whichever are more."""
    sequence: int | None = None


class Event(msgspec.Struct, gc=False):
    """An event in the file; times in microseconds."""

    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float | None = None
    dur: float | None = None
    args: Arguments | None = None


class ExactEvent(Event, gc=False):
    """An event whose time has all digits of the file, which a float would round."""

    ts: Decimal | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.ts is not None and not self.ts.is_finite():  # such as "NaN", which compares with nothing
            self.ts = None


class Operator(msgspec.Struct, gc=False):
    """A call of an operator; `charact.traces.phases` sets what follows from its nesting and its launches."""

    thread: Thread
    start_ns: int
    end_ns: int
    name: str
    sequence: int | None
    shapes: str
    self_ns: int = 0
    device_ns: int = 0
    """Time of the device's work that it launched."""
    operator_type: str = ""
    layer: str | None = None
    dtype: str | None = None
    """Type of the first floating-point tensor input."""


class Mark(msgspec.Struct, gc=False):
    """An annotation of the program, PyTorch or charact."""

    thread: Thread
    start_ns: int
    end_ns: int
    name: str


class DeviceEvent(msgspec.Struct, gc=False):
    """A kernel, copy or fill."""

    start_ns: int
    end_ns: int
    name: str
    kind: str
    device: str
    stream: str
    external_id: int | None
    correlation: int | None
    geometry: Geometry
    launched_ns: int | None = None
    operator: Operator | None = None
    exchange: Exchange | None = None


class Launch(msgspec.Struct, gc=False):
    """A call into the device's runtime."""

    thread: Thread
    start_ns: int
    external_id: int | None
    geometry: Geometry
    name: str = ""
    """Function that was called."""


class Allocated(msgspec.Struct, gc=False):
    """Memory allocated by PyTorch's allocator from a time on."""

    time_ns: int
    num_bytes: int
    device_type: int


class Dropped(NamedTuple):
    """A kind of items of a trace that the record's tables lack."""

    of_pass: str
    """Pass whose tables lack it."""
    what: str
    """Name of the items, in the plural."""
    reason: str


@dataclass
class TraceEvents:
    """The events of a trace from which its tables are built."""

    operators: list[Operator] = field(default_factory=list)
    by_id: dict[int, Operator] = field(default_factory=dict)
    """Operators by their external id."""
    marks: list[Mark] = field(default_factory=list)
    modules: list[Mark] = field(default_factory=list)
    """Calls of modules, by their own names."""
    forwards: list[Mark] = field(default_factory=list)
    """Calls of wrappers, such as DistributedDataParallel, which may hold a part of the model."""
    named: list[Mark] = field(default_factory=list)
    """The program's own annotations of phases."""
    backwards: list[Mark] = field(default_factory=list)
    """Calls of `backward`."""
    serving: list[Mark] = field(default_factory=list)
    """Annotations and calls of an inference server's steps."""
    device: list[DeviceEvent] = field(default_factory=list)
    launches: dict[int, Launch] = field(default_factory=dict)
    """By correlation."""
    unlinked: Counter[str] = field(default_factory=Counter)
    """Numbers of calls into the device's runtime without a correlation, by function."""
    copy_ends: dict[int, int] = field(default_factory=dict)
    """Ends of the calls that copy (ns), by correlation."""
    allocated: list[Allocated] = field(default_factory=list)
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    """Collectives that the host called, by the external id of the operator."""
    resolution_ns: int = 0
    """Distance between times that the file can tell apart, if that is more than 1 ns and no whole microseconds."""
    unread: Counter[str] = field(default_factory=Counter)
    """Numbers of events with a duration, by their category, that charact does not read."""
    dropped: Counter[Dropped] = field(default_factory=Counter)
    """Numbers of dropped items."""

    @property
    def steps(self) -> list[Mark]:
        """Annotations of iterations; none if the trace does not mark them."""
        return [mark for mark in self.marks if mark.name.startswith(STEP)]

    @property
    def phase_marks(self) -> list[Mark]:
        """Annotations of phases by charact itself; none in traces of other programs."""
        return [mark for mark in self.marks if mark.name in _PHASE_MARKS]
