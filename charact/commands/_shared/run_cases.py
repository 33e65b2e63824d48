"""Shared by commands that measure: run the cases and publish the record."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.commands._shared.ceilings import keep_observed, recorded_ceilings
from charact.commands._shared.publish import measure_and_publish
from charact.core.console import Console
from charact.core.output import warn
from charact.execution.interrupt import Interrupt
from charact.execution.precision import float32_settings
from charact.machine.facts import machine_facts, software_facts, usable_cores
from charact.measure.capabilities import NOISY_LOAD_FRAC, cores_in_use
from charact.measure.counters import described
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.views.terminal.progress import LiveProgress

Measure = Callable[[RunWriter, LiveProgress], None]
"""Function that runs every case into the record, and reports progress."""
_LOAD_WINDOW_S = 0.2


def run_and_publish(measure: Measure, out: Path, label: str, options: dict[str, Any], threads: int | None,
                    quiet: bool, interrupt: Interrupt, devices: Sequence[str],
                    progress_of: type[LiveProgress] = LiveProgress, *, measures_ceilings: bool = False,
                    as_json: bool = False) -> int:
    """Run the cases, which use these devices, into a new record in `out`; return the exit status.

    If `measures_ceilings`, ceilings that are not in the cache are measured first, and higher rates that the cases
    reached are kept in the cache afterwards. With `as_json`, only the JSON of the outcome is printed.

    The status is 0 if a case succeeded, 1 if none did, and 128 plus the signal if one ended the run.
    """
    quiet = quiet or as_json
    writer, console = open_record(out, label, options, threads), Console(stderr=True)

    def run_cases() -> None:
        if console.is_terminal and not quiet:
            warn_of_load(cores_in_use(_LOAD_WINDOW_S), usable_cores())
        writer.manifest |= recorded_ceilings(writer.manifest["machine"]["fingerprint"], devices,
                                             interrupt if measures_ceilings else None, quiet=quiet)
        with progress_of(console, enabled=not quiet) as progress:
            measure(writer, progress)

    status = measure_and_publish(writer, run_cases, interrupt, quiet, as_json=as_json)
    if measures_ceilings and writer.final.exists():
        keep_observed(load_run(writer.final))
    return status


def warn_of_load(others_cores: float, num_cores: int) -> None:
    """Warn if other programs hold much of the usable cores."""
    if others_cores > NOISY_LOAD_FRAC * num_cores:
        warn(f"other programs hold {others_cores:.1f} of {num_cores} cores: this takes longer, and there may be no "
             "verdict; charact doctor has remedies")


def open_record(out: Path, label: str, options: dict[str, Any], threads: int | None) -> RunWriter:
    """Create a record in `out` with facts of machine, software and options; the number of threads is set first."""
    if threads is not None:
        torch.set_num_threads(threads)
    return RunWriter(out, label, {
        "command_line": ["charact", *sys.argv[1:]], "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine_facts(), "software": software_facts(), "counters": described(),
        "options": options | {
            "threads": torch.get_num_threads(), **float32_settings(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        },
    })
