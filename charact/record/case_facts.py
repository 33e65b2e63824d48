"""Facts that the passes of a case recorded."""

from collections.abc import Mapping
from typing import Any

import msgspec

from charact.record.manifest_passes import PASSES, Pass


def pass_facts(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the facts of a pass of a case; empty if the case had no such pass.

    Args:
        entry: a case of `Run.manifest`.
        name: name of the pass.
    """
    of_pass: dict[str, Any] = entry.get("passes", {}).get(name, {})
    return with_defaults(of_pass, name) if of_pass else {}


def with_defaults(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the facts of a pass with None for those that are not written if they have no value."""
    return {field.name: None for field in msgspec.structs.fields(PASSES.get(name, Pass)) if field.default is None
            } | dict(facts)
