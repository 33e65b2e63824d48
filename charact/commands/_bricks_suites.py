"""What `charact bricks audit` and `merge` do."""

from collections.abc import Sequence
from pathlib import Path

from charact.bricks.audit import audit
from charact.bricks.merge import merge
from charact.commands._tables import print_table
from charact.errors import UserError

_MOST_ROWS = 15


def audit_suite(path: Path) -> int:
    """Print what a suite shows; returns the exit status: 1 where it shows what it should not."""
    report = audit(path)
    print_table(None, ["what is told", "bricks"], [
        *([f"mode {mode}", str(number)] for mode, number in sorted(report.modes.items())),
        *([f"batch size {size}", str(number)] for size, number in sorted(report.batch_sizes.items())),
        *([f"{length} layer" if length == 1 else f"{length} layers", str(number)]
          for length, number in sorted(report.lengths.items())),
    ])
    print_table(None, ["layer type", "layers"], [[name, str(number)] for name, number
                                                 in report.layer_types.most_common(_MOST_ROWS)])
    print("What can be inferred:")
    for line in report.reveals:
        print(f"  {line}")
    for finding in report.findings:
        print(f"should not be there: {finding}")
    if not report.findings:
        print("No file holds anything else.")
    return 1 if report.findings else 0


def merge_suites(suites: Sequence[Path], out: Path) -> int:
    """Make one suite of several.

    Raises:
        UserError: they were cut otherwise, are damaged, or the new one cannot be written.
    """
    if len(suites) < 2:
        raise UserError("name at least two suites to merge")
    merged = merge(suites, out)
    print(f"Wrote {out}: {len(merged.bricks):,} bricks")
    return 0
