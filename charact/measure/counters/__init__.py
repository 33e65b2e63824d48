"""Counter sources: one file each, holding an object named `SOURCE` that keeps to `CounterSource`."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from charact.plugins import modules_in

Method = Literal["measured", "sampled", "estimated", "modelled"]


@dataclass(frozen=True)
class Counter:
    """A number that a source gives: its name ends in its unit, or begins with `num_`."""

    name: str
    definition: str
    method: Method
    scope: str
    """What the number covers, e.g. the process or the device with all that runs on it."""


class CounterSource(Protocol):
    """Where counters come from. A source is started before a pass's iterations and stopped after them."""

    name: str
    counters: tuple[Counter, ...]
    cost: str
    """What reading it does to the program that is measured, in a few words."""

    def available(self) -> str | None:
        """Why this machine cannot give these counters, with the remedy where there is one; null where it can."""

    def start(self) -> None:
        """Begin to count."""

    def stop(self) -> list[dict[str, Any]]:
        """End counting; returns rows of the table `counters`, without `case`."""


def all_sources() -> dict[str, CounterSource]:
    """Every counter source by name."""
    sources: list[CounterSource] = [module.SOURCE for module in modules_in(__name__)]
    return {source.name: source for source in sources}
