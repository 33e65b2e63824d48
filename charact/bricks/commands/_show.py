"""`charact bricks show` and `charact bricks audit`: print what a suite holds and reveals."""

from pathlib import Path

import charact.measure  # noqa: F401  (quiets torch, so it comes before torch)
from charact.bricks.suite.audit import audit
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.suite import load_suite
from charact.bricks.views.summary import frequent, generated
from charact.commands._shared.print_table import print_table
from charact.core.console import Console
from charact.core.output import show
from charact.views.terminal.renderer import drawn

_MOST_ROWS = 15


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
                                                 in report.layer_types.most_common(_MOST_ROWS)])
    show("What can be inferred:")
    for line in report.reveals:
        show(f"  {line}")
    for finding in report.findings:
        show(f"should not be there: {finding}")
    return 1 if report.findings else 0
