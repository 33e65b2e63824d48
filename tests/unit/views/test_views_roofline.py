"""Verdicts and the roofline, in the report and in the terminal, of a case below ceilings of round numbers."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.judged import CEILINGS, judged, operator
from support.records import write_record

from charact.record.reader import Run, load_run
from charact.views.html.report import sections
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn

# 0.8 TFLOP in 1 s of forward, of which the ceilings allow 1 TFLOP/s; 0.1 s of waiting for data.
PHASES = {"data": 0.1, "forward": 1.0, "loss": 0.0, "backward": 0.0, "update": 0.0, "other": 0.0}
OPERATORS = [operator("forward", "GEMM", 1.0, flop=8e11, num_bytes=2e9)]


def html_of(run: Run) -> dict[str, str]:
    return {part.id: part.html for part in sections(run)}


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return judged(tmp_path, PHASES, OPERATORS)


def test_the_verdict_stands_on_the_card_in_its_section_and_in_the_terminal(run: Run) -> None:
    html = html_of(run)
    assert "Compute-bound, 90.9 % of the iteration" in words(html["summary"])
    told = words(html["bottleneck"])
    assert "compute-bound, 90.9 % of the iteration" in told
    assert "18.2 % of the iteration" in told  # 1 s less the 0.8 s that it needs at the ceiling, of 1.1 s
    assert all(title in told for title in ("Evidence", "Potential speedup", "To try"))
    Console(file=(stream := io.StringIO()), width=200).print(drawn(summary(run)))
    screen = stream.getvalue()
    assert "compute-bound, 90.9 % of the iteration" in screen
    assert "18.2 % of the iteration" in screen


@pytest.mark.slow
def test_points_lie_below_a_roof_that_is_named(run: Run) -> None:
    html = html_of(run)["roofline"]
    assert html.count("<figure") == 1
    told = words(html)
    assert "fp32 1.00 TFLOP/s" in told
    assert "memory 100 GB/s" in told
    assert "800 GFLOP/s" in told  # achieved by the GEMM
    assert "80.0 %" in told  # of the ceiling
    assert "matrix products" in told  # the ceilings' own table


@pytest.mark.slow
def test_ceilings_that_were_measured_beside_other_load_are_said_to_be(tmp_path: Path) -> None:
    disturbed = [row | {"cores_frac": 0.6 if row["ceiling"] == "gemm" else None} for row in CEILINGS]
    told = words(html_of(judged(tmp_path, PHASES, OPERATORS, ceilings=disturbed))["roofline"])
    assert "Too low: other processes left 60.0 % of the cores" in told


@pytest.mark.slow
def test_a_rate_above_the_probes_is_the_ceiling(tmp_path: Path) -> None:
    fast = [operator("forward", "GEMM", 1.0, flop=1.5e12, num_bytes=2e9)]
    told = words(html_of(judged(tmp_path, PHASES, fast))["roofline"])
    assert "1.50 TFLOP/s GEMM " in told  # the rate that was reached, in place of the probe's
    assert "150.0 %" not in told


@pytest.mark.slow_variants
@pytest.mark.parametrize("ceilings", [[], CEILINGS[:1]])
def test_without_ceilings_there_is_a_table_and_a_reason(tmp_path: Path, ceilings: list[dict]) -> None:
    html = html_of(judged(tmp_path, PHASES, OPERATORS, ceilings=ceilings))
    assert "<figure" not in html["roofline"]
    assert "charact doctor --ceilings" in words(html["roofline"])
    assert "800 GFLOP/s" in words(html["roofline"])
    assert "n/a (" in words(html["bottleneck"])


def test_a_record_without_operators_or_flop_still_has_its_sections(tmp_path: Path) -> None:
    html = html_of(judged(tmp_path, PHASES))
    assert "n/a" in words(html["roofline"])
    assert "n/a (" in words(html["bottleneck"])


@pytest.mark.slow
def test_a_record_of_before_there_were_ceilings(tmp_path: Path) -> None:
    html = html_of(load_run(write_record(tmp_path)))
    assert "no ceilings were measured before this run" in words(html["roofline"])
