"""Records of the cases that a test runs."""

from collections.abc import Callable
from pathlib import Path

from charact import load_run
from charact.execution.interrupt import Interrupt
from charact.record.reader import Run
from charact.record.writer import RunWriter


def recorded(out: Path, measure: Callable[[RunWriter, Interrupt], None]) -> Run:
    """Return the record that a function writes."""
    writer = RunWriter(out, "test", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        measure(writer, interrupt)
    writer.close("complete")
    return load_run(writer.publish())
