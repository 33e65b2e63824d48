"""Which runs have timed iterations to show."""

from charact.record.reader import Run


def is_timed(run: Run) -> bool:
    """Whether a case was to be timed for its own sake, not only for a constructed latency to be held against."""
    passes = [entry.get("passes", {}) for entry in run.manifest["cases"]]
    return any("timing" in taken and "construct" not in taken for taken in passes)


def has_phases(run: Run) -> bool:
    """Whether iterations were timed, or were to be; those that constructed models are held against count as theirs."""
    return is_timed(run) or not set(run.iterations["case"]) <= set(run.constructions["case"])
