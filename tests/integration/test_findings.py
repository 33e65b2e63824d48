"""Programs whose fault is known: `charact run` names it among the first three findings, at its place, with its remedy.

The three programs without a fault get no finding that promises much. What a remedy really saves is measured by
`benchmarks/findings.py`.
"""

from pathlib import Path
from typing import Any

import pytest
from findings import FIRST, judged, read_truths, row
from support.forked import Server
from support.programs import only_record, run_watched

from charact.views.export.run_summary import run_summary

PROGRAMS = Path(__file__).parents[1] / "programs"
KNOWN = read_truths(PROGRAMS / "known_causes")
QUICK = {"validation_graph"}


def summary_of(path: Path, directory: Path, server: Server | None = None) -> dict[str, Any]:
    """Return the summary of a program that ran under charact, in a process of its own or in a forked child."""
    if server is None:
        assert run_watched([str(path)], directory).status == 0
    else:
        assert server.charact("run", "--quiet", path, cwd=directory).returncode == 0
    return run_summary(only_record(directory))


@pytest.mark.clock
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
                                  for name in sorted(KNOWN)])
def test_a_known_cause_is_named(tmp_path: Path, name: str, server: Server) -> None:
    path = PROGRAMS / "known_causes" / f"{name}.py"
    summary = summary_of(path, tmp_path, server if name in QUICK else None)
    verdict, reason = judged(path, KNOWN[name], summary["findings"], None)
    assert verdict == "right", row(name, verdict, reason, summary["findings"], None)
    assert len(summary["findings"]) <= 2 * FIRST
    parts = {part["part"]: part["time_s"] for part in summary["program_time"]}
    assert parts["start"] > 0
    assert sum(part["share_frac"] for part in summary["program_time"]) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.parametrize("path", sorted((PROGRAMS / "well_written").glob("*.py")), ids=lambda path: path.stem)
def test_a_well_written_program_gets_no_false_advice(tmp_path: Path, path: Path) -> None:
    findings = summary_of(path, tmp_path)["findings"]
    truth = read_truths(path.parent)[path.stem]
    verdict, reason = judged(path, truth, findings, None)
    assert verdict in ("right", "partly"), row(path.stem, verdict, reason, findings, None)
