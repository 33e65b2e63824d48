"""Counter sources: one file each, holding an object named `SOURCE` that keeps to one of the protocols here.

A counter's name ends in its unit or begins with `num_`, and means the same in every source that gives it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from charact.errors import UserError
from charact.plugins import modules_in

if TYPE_CHECKING:
    import torch

    from charact.measure.loop import Loop

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


def all_sources() -> dict[str, CounterSource]:
    """Every counter source by name."""
    sources: list[CounterSource] = [module.SOURCE for module in modules_in(__name__)]
    return {source.name: source for source in sources}


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


def chosen_sources(names: Sequence[str] | None) -> list[CounterSource]:
    """Sources by name; `auto`, or where none are named, stands for all that need no pass of their own.

    Raises:
        UserError: there is no such source.
    """
    sources = all_sources()
    chosen: dict[str, CounterSource] = {}
    for name in ["auto"] if names is None else names:
        if name == "auto":
            chosen |= {source.name: source for source in sources.values() if source.taken != "own pass"}
        elif name == "none":
            raise UserError("--counters: none stands alone: leave it out, or the others")
        elif name in sources:
            chosen[name] = sources[name]
        else:
            raise UserError(f"--counters: '{name}' is not one of auto, none, {', '.join(sources)}")
    return list(chosen.values())


def described() -> dict[str, dict[str, dict[str, str]]]:
    """What every counter means, for the manifest: by source and name its definition, method and scope."""
    return {
        source.name: {
            counter.name: {key: value for key, value in asdict(counter).items() if key != "name"}
            for counter in source.counters
        }
        for source in all_sources().values()
    }
