"""Checks for timed iterations in a run."""

from charact.record.reader import Run


def is_timed(run: Run) -> bool:
    """Return whether a case has a timing pass that does not only verify a constructed latency."""
    passes = [entry.get("passes", {}) for entry in run.manifest["cases"]]
    return any("timing" in taken and "construct" not in taken for taken in passes)


def has_phases(run: Run) -> bool:
    """Return whether a run has a timing pass or timed iterations, apart from those of constructed models."""
    return is_timed(run) or not set(run.iterations["case"]) <= set(run.constructions["case"])
