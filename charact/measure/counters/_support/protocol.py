"""What a counter source is: the protocols that each keeps to, and how one ends without counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from charact.execution.loop import Loop

Method = Literal["measured", "sampled", "estimated", "modelled"]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Counter:
    """A number that a source gives: its name ends in its unit, or begins with `num_`."""

    name: str
    definition: str
    method: Method
    scope: str
    """What the number covers, e.g. the process or the device with all that runs on it."""


@dataclass(frozen=True)
class Refusal:
    """Why a source gives nothing, and what to do about it where something can be done."""

    reason: str
    remedy: str | None = None


class Refused(Exception):
    """A source gives nothing, from now on."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, remedy)


class Reading(Protocol):
    """Counting that goes on, of one source on one device."""

    missing: Mapping[str, str]
    """Counters that this device does not give, each with the reason."""

    def sample(self) -> Mapping[str, float]:
        """Counters of this moment by name; called from a thread of its own, every `period_s`.

        Raises:
            Refused: there will be no more.
        """

    def close(self) -> Mapping[str, float]:
        """End counting; returns counters over the whole stretch by name.

        Raises:
            Refused: there are none.
        """


class CounterSource(Protocol):
    """Where counters come from."""

    name: str
    counters: tuple[Counter, ...]
    cost: str
    """What reading it does to the program that is measured, in a few words."""
    devices: frozenset[str]
    """Types of the devices that a case may run on for it to count: `cpu`, `cuda`."""
    reads: Literal["host", "device"]
    """Whether its counters are of the host, or of the device that the case runs on."""
    taken: Literal["along", "trace", "own pass"]
    """When: along with the iterations of the counter pass, from the operator pass's trace, or in a pass of its own,
    which is run only when the source is asked for by name."""

    def available(self) -> Refusal | None:
        """Why this machine cannot give these counters; None where it can."""


class SampledSource(CounterSource, Protocol):
    """A source that is read along with iterations, which it does not slow."""

    period_s: float | None
    """Time between two samples; None where nothing is sampled."""

    def open(self, device: "torch.device") -> Reading:
        """Begin to count on a device.

        Raises:
            Refused: that device gives nothing.
        """


@dataclass(frozen=True)
class Found:
    """Rows of the table `counters` from a pass of its own, without `case` and `source`; and what it did not find."""

    rows: Rows
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class PassSource(CounterSource, Protocol):
    """A source that needs iterations of its own, since it slows them or locks the device's clocks."""

    def take(self, loop: "Loop") -> Found:
        """Count over some iterations.

        Raises:
            Refused: it cannot.
        """


def refusal_of(source: CounterSource, device: "torch.device") -> Refusal | None:
    """Why a source gives nothing for a case on a device; None where it may."""
    if device.type not in source.devices:
        return Refusal(f"counts on {' and '.join(sorted(source.devices))} devices only")
    return source.available()


def outcome(refusal: Refusal | None, missing: Mapping[str, str] | None = None) -> dict[str, Any]:
    """How reading a source ended, for the manifest: `missing` are counters that the device does not give."""
    if refusal is None:
        return {"status": "ok", "reason": None, "remedy": None, "missing": dict(missing or {})}
    return {"status": "n/a", "reason": refusal.reason, "remedy": refusal.remedy, "missing": dict(missing or {})}
