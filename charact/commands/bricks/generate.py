"""`charact bricks generate`: captures models, cuts them, and adds new bricks to a suite."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.decoys import drawn_decoys
from charact.bricks.suite.writer import Added, CutModel, add_models, check_place
from charact.commands._shared.publish import program
from charact.commands.bricks.models import Asked, CapturedSource, captured_sources
from charact.core.console import Console
from charact.core.output import show, warn
from charact.execution.interrupt import Interrupt
from charact.views.terminal.suites import generated
from charact.workload.registry import all_workloads

_PATIENCE_S = 60.0
"""Maximum time to wait for another process that writes the suite (seconds)."""


def generate_suite(asked: Asked, out: Path, g: int, method: str, fallback: str | None, num_decoys: int,
                   quiet: bool, interrupt: Interrupt) -> int:
    """Write or extend a suite; return the exit status, 1 if no model could be captured.

    Raises:
        UserError: the options do not fit, or the suite cannot be written.
        KeyboardInterrupt: a signal came; nothing is written.
    """
    sources = asked.sources()
    suite = check_place(out, g, method)
    found = captured_sources(asked, sources, g, method, fallback, quiet, interrupt)
    if not found:
        warn("no model could be captured: nothing is written")
        return 1
    models = [each.model for each in found]
    decoys: list[CutModel] = []
    if num_decoys:
        known = {brick.id for model in models for brick in model.bricks} | set(suite.bricks if suite else ())
        decoys = drawn_decoys(_others(asked, sources[0].batch_size, g, method, interrupt), known, num_decoys)
    added = add_models(out, models, g, method, torch.__version__, decoys, _PATIENCE_S)
    _report(added, found, models, out, quiet)
    return 0


def _others(asked: Asked, batch_size: int, g: int, method: str, interrupt: Interrupt) -> Iterator[CutModel]:
    """Yield other workloads, cut, in random order."""
    names = [name for name in all_workloads() if name not in asked.names]
    secrets.SystemRandom().shuffle(names)
    for name in names:
        other = replace(asked, names=[name], input_sizes=None, batch_sizes=asked.batch_sizes or [batch_size],
                        variant=None, own={})
        for found in captured_sources(other, other.sources(), g, method, None, True, interrupt):
            yield found.model


def _report(added: Added, found: Sequence[CapturedSource], models: Sequence[CutModel], out: Path,
          quiet: bool) -> None:
    """Print the added bricks and the notes of the captures."""
    if not quiet:
        for each in found:
            for note in each.notes:
                warn(f"note: {each.source.id}: {note}")
        for case in added.replaced:
            warn(f"note: {case}: replaced a different composition: the model was changed, or another file has the same "
                 "name")
        cases = {model.composition.case for model in models}
        Console().print(generated(cases, load_compositions(added.suite.private), added.suite))
    show(f"Wrote {out}: {len(added.suite.bricks):,} bricks, {added.num_new:,} of them new")
    if not quiet:
        show(f"  {added.suite.private} lists the bricks of each model: keep it private")
        show(f"  next         {program()} bricks run {out}")
