"""Programs whose fault is known: `charact run` names it among the first three findings, at its place, with its remedy.

The three programs without a fault get no finding that promises much. What a remedy really saves is measured by
`benchmarks/findings.py`.
"""

import json
from pathlib import Path

import pytest
from findings import FIRST, judged, read_truths, row
from support.programs import charact

PROGRAMS = Path(__file__).parents[1] / "programs"
KNOWN = read_truths(PROGRAMS / "known_causes")
QUICK = {"adam_many_tensors", "remote_log", "workers_for_tensors"}


@pytest.mark.clock
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
                                  for name in sorted(KNOWN)])
def test_a_known_cause_is_named(tmp_path: Path, name: str) -> None:
    path = PROGRAMS / "known_causes" / f"{name}.py"
    charact("run", "--quiet", "--out", str(tmp_path), str(path))
    summary = json.loads(charact("show", "--json", str(tmp_path)).stdout)
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
    charact("run", "--quiet", "--out", str(tmp_path), str(path))
    findings = json.loads(charact("show", "--json", str(tmp_path)).stdout)["findings"]
    truth = read_truths(path.parent)[path.stem]
    verdict, reason = judged(path, truth, findings, None)
    assert verdict in ("right", "partly"), row(path.stem, verdict, reason, findings, None)
