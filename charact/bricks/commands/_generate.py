"""`charact bricks generate`, `show` and `audit`: write a suite of bricks, and print what it holds and reveals."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.commands._models import Asked, captured_models
from charact.bricks.suite.audit import audit
from charact.bricks.suite.composition import CutModel, drawn_decoys, load_compositions
from charact.bricks.suite.suite import add_models, check_place, load_suite
from charact.bricks.views.summary import frequent, generated
from charact.commands._shared.print_table import print_table
from charact.commands._shared.publish import program
from charact.core.console import Console
from charact.core.output import show, warn
from charact.execution.interrupt import Interrupt
from charact.views.terminal.renderer import drawn
from charact.workload.registry import all_workloads

_PATIENCE_S = 60.0
"""Maximum time to wait for another process that writes the suite (seconds)."""
_MOST_LAYER_TYPES = 15


def generate_suite(asked: Asked, out: Path, g: int, method: str, num_decoys: int, quiet: bool,
                   interrupt: Interrupt) -> int:
    """Write or extend a suite; return the exit status, 1 if no model could be captured.

    Raises:
        KeyboardInterrupt: a signal came; nothing is written.
    """
    sources = asked.sources()
    suite = check_place(out, g, method)
    models = captured_models(asked, sources, g, method, quiet, interrupt)
    if not models:
        warn("no model could be captured: nothing is written")
        return 1

    def others() -> Iterator[CutModel]:
        """Yield other workloads, cut, in random order."""
        names = [name for name in all_workloads() if name not in asked.names]
        secrets.SystemRandom().shuffle(names)
        for name in names:
            other = replace(asked, names=[name], input_sizes=None, variant=None, own={},
                            batch_sizes=asked.batch_sizes or [sources[0].case.batch_size])
            yield from captured_models(other, other.sources(), g, method, True, interrupt)

    known = {brick.id for model in models for brick in model.bricks} | set(suite.bricks if suite else ())
    decoys = drawn_decoys(others(), known, num_decoys) if num_decoys else []
    added = add_models(out, models, g, method, torch.__version__, decoys, _PATIENCE_S)
    suite = added.suite
    if not quiet:
        for case in added.replaced:
            warn(f"note: {case}: replaced a different composition: the model was changed, or another file has the same "
                 "name")
        cases = {model.composition.case for model in models}
        Console().print(drawn(generated(cases, load_compositions(suite.private), suite)))
    show(f"Wrote {out}: {len(suite.bricks):,} bricks, {added.num_new:,} of them new")
    if not quiet:
        show(f"  {suite.private} lists the bricks of each model: keep it private")
        show(f"  next         {program()} bricks run {out}")
    return 0


def show_suite(path: Path, directory: Path | None) -> int:
    """Print the bricks of a suite's models, and the most frequent bricks; return exit status 0."""
    suite = load_suite(path)
    compositions = load_compositions(suite.private if directory is None else directory)
    console = Console()
    console.print(drawn(generated([each.case for each in compositions], compositions, suite)))
    console.print(drawn(frequent(compositions, suite)))
    return 0


def audit_suite(path: Path) -> int:
    """Print what a suite reveals; return the exit status, 1 for unexpected content."""
    report = audit(path)
    print_table(None, ["revealed", "bricks"], [
        *([f"mode {mode}", str(number)] for mode, number in sorted(report.modes.items())),
        *([f"batch size {size}", str(number)] for size, number in sorted(report.batch_sizes.items())),
        *([f"{length} layer" if length == 1 else f"{length} layers", str(number)]
          for length, number in sorted(report.lengths.items())),
    ])
    print_table(None, ["layer type", "layers"], [[name, str(number)] for name, number
                                                 in report.layer_types.most_common(_MOST_LAYER_TYPES)])
    show("What can be inferred:")
    for line in report.reveals:
        show(f"  {line}")
    for finding in report.findings:
        show(f"should not be there: {finding}")
    return 1 if report.findings else 0
