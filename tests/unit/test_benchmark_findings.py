"""The truth of programs with known faults, and the rules by which findings are judged by it."""

from pathlib import Path
from typing import Any

import pytest
from findings import Saved, Truth, holds, judged, read_truths

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/programs/known_causes", "benchmarks/reported_causes", "tests/programs/well_written")
SAVED = Saved(10, 3, 0)


def finding(name: str = "line", confidence: str = "high", recoverable: tuple[float, float] = (0.25, 0.35),
            **values: Any) -> dict[str, Any]:
    """Return a finding about the second line of the program."""
    return {"finding": name, "confidence": confidence, "recoverable_frac": list(recoverable),
            "recoverable_s": [10 * share for share in recoverable], "file": "program.py",
            "line": 2, "layer": None, "setting": None, "phase": None, "remedy": "Log less often.", **values}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text("import time\ntime.sleep(1)\n")
    return path


TRUTH = Truth(findings=["line", "periodic_work"], lines=["time.sleep("], phases=["other"], remedy=["less often"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_of_a_line_is_in_its_program(folder: str) -> None:
    truths = read_truths(ROOT / folder)
    assert len(truths) >= 12
    for name, truth in truths.items():
        lines = (ROOT / folder / f"{name}.py").read_text().splitlines()
        assert [text for text in truth.lines if not any(text in line for line in lines)] == [], name
        assert bool(truth.findings) == bool(truth.environment) == bool(truth.remedy), name


def test_every_remedied_program_prints_its_loop_and_reads_the_variable() -> None:
    for folder in FOLDERS:
        for name, truth in read_truths(ROOT / folder).items():
            source = (ROOT / folder / f"{name}.py").read_text()
            assert "loop: " in source or "from marks import mark" in source, name
            assert ('os.environ.get("REMEDY")' in source) == bool(truth.environment), name


def test_a_finding_among_the_first_three_with_all_its_parts_is_right(program: Path) -> None:
    others = [finding("threads"), finding("hooks")]
    assert judged(program, TRUTH, [*others, finding()], SAVED)[0] == "right"
    assert judged(program, TRUTH, [*others, finding("data_loading"), finding()], SAVED)[0] == "partly"


@pytest.mark.parametrize(("values", "wrong"), [
    ({"line": 1}, "place"), ({"file": "other.py"}, "place"), ({"remedy": "Buy a GPU."}, "remedy"),
    ({"recoverable": (0.6, 0.9)}, "range"), ({"recoverable": (0.01, 0.05)}, "range"),
])
def test_a_wrong_part_is_named(program: Path, values: dict[str, Any], wrong: str) -> None:
    assert judged(program, TRUTH, [finding(**values)], SAVED) == ("partly", f"line at 1, not {wrong}")


def test_a_phase_places_all_findings_but_lines(program: Path) -> None:
    assert judged(program, TRUTH, [finding("periodic_work", line=None, phase="other")], SAVED)[0] == "right"
    assert judged(program, TRUTH, [finding("line", line=1, phase="other")], SAVED)[0] == "partly"


@pytest.mark.parametrize(("findings", "verdict"), [
    ([finding("hooks", "medium")], "wrong"), ([finding("hooks", "low")], "silent"), ([finding("compute")], "silent"),
    ([], "silent")])
def test_another_cause_is_wrong_and_a_limit_is_silent(program: Path, findings: Any, verdict: str) -> None:
    assert judged(program, TRUTH, findings, SAVED)[0] == verdict


@pytest.mark.parametrize(("name", "confidence", "recoverable", "verdict"), [
    ("hooks", "high", (0.1, 0.2), "wrong"), ("hooks", "low", (0.1, 0.2), "partly"),
    ("hooks", "high", (0, 0.2), "partly"), ("hooks", "high", (0, 0.02), "right"),
    ("host", "high", (0.1, 0.2), "right"), ("threads", "high", (0.1, 0.2), "right"),
])
def test_a_program_without_a_fault(program: Path, name: str, confidence: str, recoverable: tuple[float, float],
                                   verdict: str) -> None:
    assert judged(program, Truth(allowed=["threads"]), [finding(name, confidence, recoverable)], None)[0] == verdict


@pytest.mark.parametrize(("promised", "saved", "is_held"), [
    ([2, 2], SAVED, True), ([4.5, 4.5], SAVED, True), ([0.01, 0.02], Saved(10, 0.5, 0), True),
    ([1.9, 1.9], SAVED, False), ([4.6, 5], SAVED, False), (None, SAVED, False)])
def test_ranges_hold_within_a_factor_or_five_points(promised: Any, saved: Saved, is_held: bool) -> None:
    assert holds(promised, saved) == is_held
