"""Facts that the passes of a case recorded."""

from collections.abc import Mapping
from typing import Any


def pass_facts(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the facts of a pass of a case; empty if the case had no such pass.

    Args:
        entry: a case of `Run.manifest`.
        name: name of the pass.
    """
    of_pass: dict[str, Any] = entry.get("passes", {}).get(name, {})
    return of_pass
