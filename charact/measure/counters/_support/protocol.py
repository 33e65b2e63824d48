"""Protocols of counter sources, and the reasons why they are unavailable. No torch in here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from charact.record.schema import Rows

if TYPE_CHECKING:
    import torch

    from charact.execution.loop import Loop

NOT_TRIED = "not yet run on a device"
"""What users read of a source whose `tried_on` is None: its tests have run with stubs only."""

Method = Literal["measured", "sampled", "estimated", "modelled"]


@dataclass(frozen=True)
class Counter:
    """The description of a number that a source gives. Its name ends in its unit, or begins with `num_`."""

    name: str
    definition: str
    method: Method
    scope: str
    """Scope of the number, e.g. the process or the device with all that runs on it."""


@dataclass(frozen=True)
class Unavailable:
    """Why a source is unavailable, and the remedy if there is one."""

    reason: str
    remedy: str | None = None


class UnavailableError(Exception):
    """The source is unavailable from now on."""

    def __init__(self, reason: str | Unavailable, remedy: str | None = None) -> None:
        self.unavailable = reason if isinstance(reason, Unavailable) else Unavailable(reason, remedy)
        super().__init__(self.unavailable.reason)


class Reading(Protocol):
    """Ongoing reading of one source on one device."""

    @property
    def missing(self) -> Mapping[str, str]:
        """Reasons of the counters that this device does not give, by name."""

    def sample(self) -> Mapping[str, float]:
        """Return current values by name; called every `period_s` from a separate thread.

        Raises:
            UnavailableError: the source is unavailable from now on.
        """

    def close(self) -> Mapping[str, float]:
        """End the reading; return counters over the whole pass by name.

        Raises:
            UnavailableError: there are none.
        """


class CounterSource(Protocol):
    """Source of counters; by default of a CUDA device, read along with iterations, and not yet run on a device."""

    name: str
    counters: tuple[Counter, ...]
    cost: str
    """Effect of the reading on the measured program, in a few words."""
    devices: frozenset[str] = frozenset({"cuda"})
    """Device types of cases that it supports: `cpu`, `cuda`."""
    reads: Literal["host", "device"] = "device"
    """Whether its counters are the host's or the case's device's."""
    taken: Literal["along", "trace", "own pass"] = "along"
    """When it is read: during the counter pass, from the operator pass's trace, or in its own pass.

    Sources with their own pass run only if requested by name.
    """
    tried_on: str | None = None
    """Device or machine on which it has given counters, as a record or checks in `reports/` show; None if none do."""

    def available(self) -> Unavailable | None:
        """Return why this machine cannot give these counters, or None."""


class SampledSource(CounterSource, Protocol):
    """Source that is read along with iterations, without slowing them down."""

    period_s: float | None
    """Time between two samples; None for no samples."""

    def open(self, device: "torch.device") -> Reading:
        """Start to count on a device.

        Raises:
            UnavailableError: the device gives no counters.
        """


@dataclass(frozen=True)
class Found:
    """Rows of the table `counters` from a source's own pass, without `case` and `source`; missing counters; facts."""

    rows: Rows
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class PassSource(CounterSource, Protocol):
    """Source that needs its own iterations, since it slows them down or locks the device's clocks."""

    def take(self, loop: "Loop") -> Found:
        """Count over some iterations.

        Raises:
            UnavailableError: it cannot count.
        """


def why_unavailable(source: CounterSource, device: "torch.device") -> Unavailable | None:
    """Return why a source cannot count for a case on a device; None if it may."""
    if device.type not in source.devices:
        return Unavailable(f"counts on {' and '.join(sorted(source.devices))} devices only")
    return source.available()


def outcome(unavailable: Unavailable | None, missing: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the outcome of a source for the manifest; `missing` are counters that the device does not give."""
    if unavailable is None:
        return {"status": "ok", "reason": None, "remedy": None, "missing": dict(missing or {})}
    return {"status": "n/a", "reason": unavailable.reason, "remedy": unavailable.remedy, "missing": dict(missing or {})}


ADMIN_ONLY = Unavailable(
    "the driver lets only administrators read performance counters",
    "have an administrator set `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d and reboot, "
    "or start the container with `docker run --cap-add=SYS_ADMIN`")
BUSY = Unavailable("another profiler holds the device's performance counters",
                   "end it; for DCGM: `dcgmi profile --pause`, and --resume afterwards")
UNSUPPORTED = Unavailable("NVIDIA's profiler does not know this GPU's architecture",
                          "use a version of it that lists the GPU; see its release notes")

_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAPABILITIES = 1 << 21 | 1 << 38  # CAP_SYS_ADMIN and CAP_PERFMON, linux/capability.h


def counters_unavailable() -> Unavailable | None:
    """Return why the hardware's counters cannot be read through NVIDIA's driver, or None.

    The driver's parameter predicts it; without the parameter's file, the first counting shows it.
    """
    import torch  # here, since a child must load CUPTI first

    if torch.version.cuda is None:
        return Unavailable(f"counts on NVIDIA's GPUs, and torch {torch.__version__} is built without CUDA",
                           "on an NVIDIA GPU, install a CUDA build")
    if not torch.cuda.is_available():
        return Unavailable("counts on NVIDIA's GPUs, and torch finds none", "see `charact doctor` for why")
    return ADMIN_ONLY if admin_only() and not privileged() else None


def admin_only(parameters: Path = _PARAMETERS) -> bool:
    """Return whether the driver reserves counters for administrators; False if unknown."""
    if not parameters.exists():
        return False
    text = parameters.read_text(encoding="ascii", errors="replace")
    return re.search(r"^RmProfilingAdminOnly:\s*1\s*$", text, re.MULTILINE) is not None


def privileged(status: Path = _STATUS) -> bool:
    """Return whether this process has a capability of an administrator; False if unknown."""
    if not status.exists():
        return False
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    return held is not None and bool(int(held[1], 16) & _CAPABILITIES)
