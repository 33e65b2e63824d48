"""Counter sources: one module each, with an object `SOURCE` that implements a protocol of `_support/protocol.py`.

A counter's name ends in its unit or begins with `num_`, and has the same meaning in every source.
"""

from collections.abc import Sequence
from dataclasses import asdict

from charact.core.errors import UserError
from charact.core.plugins import modules_in
from charact.measure.counters._support.protocol import CounterSource


def all_sources() -> dict[str, CounterSource]:
    """Return every counter source by name."""
    sources: list[CounterSource] = [module.SOURCE for module in modules_in(__name__)]
    return {source.name: source for source in sources}


def chosen_sources(names: Sequence[str] | None) -> list[CounterSource]:
    """Return sources by name; `auto`, or no names, selects all that need no pass of their own."""
    sources = all_sources()
    chosen: dict[str, CounterSource] = {}
    for name in ["auto"] if names is None else names:
        if name == "auto":
            chosen |= {source.name: source for source in sources.values() if source.taken != "own pass"}
        elif name == "none":
            raise UserError("--counters: none cannot be combined with other sources: leave it or them out")
        elif name in sources:
            chosen[name] = sources[name]
        else:
            raise UserError(f"--counters: '{name}' is not one of auto, none, {', '.join(sources)}")
    return list(chosen.values())


def described() -> dict[str, dict[str, dict[str, str]]]:
    """Return definition, method and scope of every counter, by source and name, for the manifest."""
    return {
        source.name: {
            counter.name: {key: value for key, value in asdict(counter).items() if key != "name"}
            for counter in source.counters
        }
        for source in all_sources().values()
    }
