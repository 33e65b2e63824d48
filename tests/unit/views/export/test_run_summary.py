"""The summary of a run for programs: JSON with documented keys, and a page of Markdown."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import brick_records, counter_records, memory_records, operation_records, records
from support.watched_programs import watched_program

from charact import cli
from charact.record.reader import load_run
from charact.views.case_kind import all_kinds
from charact.views.export.run_summary import NUM_ROWS, lines_of, run_summary
from charact.views.export.summary_markdown import MAX_LINES, summary_markdown

DOCUMENT = Path(__file__).parents[4] / "docs" / "show.md"
RUNS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "profile": (records.write_record, "median_s"),
    "training": (records.write_training, "total_s"),
    "inference": (records.write_inference, "total_warm_s"),
    "watched": (records.write_watched, "median_s"),
    "memory": (memory_records.write_memory, "predicted_bytes"),
    "gpu": (counter_records.write_gpu, "median_s"),
    "operation": (lambda out: operation_records.suite(out, 8).path, "time_s"),
    "bricks": (lambda out: brick_records.suite_run(out).path, "suite_s"),
    "construction": (lambda out: brick_records.three_models(out).path, "latency_s"),
}
"""A writer of a run of each kind, and a headline number that its first case has."""
SLOW = ("profile", "inference", "memory", "gpu", "operation", "construction")


@pytest.fixture(scope="module", params=[
    pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in RUNS])
def summarized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
               ) -> tuple[str, dict[str, Any], str]:
    """Return the headline number's key, the summary and the Markdown of a run of each kind."""
    write, headline = RUNS[request.param]
    run = load_run(write(tmp_path_factory.mktemp("run")))
    return headline, run_summary(run), summary_markdown(run)


def test_every_kind_of_run_has_its_headline_and_the_same_facts(summarized: tuple[str, dict[str, Any], str]) -> None:
    headline, summary, _ = summarized
    assert summary["run"]["num_cases"] == len(summary["cases"]) > 0
    assert summary["machine"]["cpu"] == "AMD EPYC"
    for case in summary["cases"]:
        assert {"case", "kind", "status", "reason", "warnings", "left_out", "headline", "not_measured"} <= set(case)
    assert summary["cases"][0]["headline"][headline] > 0


def test_the_lines_are_json_without_nan(summarized: tuple[str, dict[str, Any], str]) -> None:
    lines = lines_of(summarized[1])
    assert json.loads("\n".join(lines), parse_constant=pytest.fail) == summarized[1]
    assert lines[0] == "{"
    assert lines[1] == ' "keys_version": 1,'


def test_what_no_case_measured_is_one_line_of_the_page(tmp_path: Path) -> None:
    text = summary_markdown(load_run(records.write_watched(tmp_path)))
    (missing,) = (line for line in text.splitlines() if line.startswith("- not measured"))
    assert "operators pass (not asked for: charact run --passes operators); memory pass (not asked for" in missing


def test_tables_are_cut_and_the_number_of_other_rows_is_there(tmp_path: Path) -> None:
    bricks = {f"{number:064x}": (["relu"], 0.001 * (number + 1)) for number in range(14)}
    case = run_summary(load_run(brick_records.suite_run(tmp_path, bricks).path))["cases"][0]
    assert len(case["bricks"]) == NUM_ROWS
    assert case["left_out"]["bricks"] == 4


def test_markdown_is_one_page_and_names_the_cases(summarized: tuple[str, dict[str, Any], str]) -> None:
    _, summary, text = summarized
    lines = text.split("\n")
    assert len(lines) <= MAX_LINES
    assert summary["cases"][0]["case"].partition("-")[0] in text.replace("\\", "")
    assert "nan" not in text.replace("the loss was nan", "").lower().split()


def test_every_key_is_documented() -> None:
    words = DOCUMENT.read_text(encoding="utf-8")
    for kind in all_kinds():
        assert kind.name in words
        assert [key for key in kind.parts if f"`{key}`" not in words] == []


def test_what_is_missing_has_its_reason(tmp_path: Path) -> None:
    case = run_summary(load_run(records.write_watched(tmp_path)))["cases"][0]
    assert case["headline"]["low_s"] is None
    assert case["headline"]["reasons"]["low_s"] == "fewer than 6 iterations"
    assert case["verdict"]["verdict"] is None
    assert "operators: not asked for: charact run --passes operators" in case["verdict"]["reason"]
    assert {"what": "flop pass", "reason": "not measured"} in case["not_measured"]


def test_a_verdict_has_its_evidence_and_the_potential_saving(tmp_path: Path) -> None:
    rows = [{"iteration": number, "phase": phase, "part": None, "host_s": time_s, "device_s": None}
            for number in range(8) for phase, time_s in (("data", 0.06), ("forward", 0.04))]
    run = load_run(records.write_watched(tmp_path, rows=rows))
    verdict = run_summary(run)["cases"][0]["verdict"]
    assert verdict["verdict"] == "data-bound"
    assert math.isclose(verdict["potential_saving_s"], 0.06)
    assert verdict["potential_saving"].endswith("60.0 % of the iteration, 60.0 ms")
    assert "counts as a bottleneck if it takes 30.0 % of the iteration or more" in verdict["evidence"]
    page = summary_markdown(run)
    assert "it is data-bound." in page
    assert "   - saves: at most 60.0 ms, 60.0 % of an iteration" in page


def test_findings_come_first_with_their_remedy(tmp_path: Path) -> None:
    text = summary_markdown(watched_program(tmp_path, {"forward": 0.02, "backward": 0.02}, settings={
        "threads": {"intra_op": 16, "inter_op": 1, "num_usable_cores": 2}}))
    findings, _, others = text.partition("| Case |")
    assert "1. PyTorch computes with 16 threads on 2 cores" in findings
    assert "to do: Call torch.set\\_num\\_threads(2)" in findings
    assert "of the program: training" in findings
    assert "threads" not in others


def test_the_newest_run_of_a_directory_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (records.write_training(tmp_path, name=name) for name in ("b", "a"))
    old = old.rename(tmp_path / "20250101-000000-z-aaaaaa")
    assert cli.run(["show", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["run"]["path"] == str(new)
    assert shown.err == f"The newest run of {tmp_path}: {new}\n"


def test_without_an_option_the_terminals_summary_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = records.write_training(tmp_path)
    assert cli.run(["show", str(run)]) == 0
    brief = capsys.readouterr().out
    assert "to train; 1 of 3 failed (diverged)." in brief
    assert "Time by stage" not in brief
    assert cli.run(["show", str(run), "--verbose"]) == 0
    assert "Time by stage" in capsys.readouterr().out
    assert cli.run(["show", str(run), "--md"]) == 0
    assert capsys.readouterr().out.startswith("# ")


def test_a_directory_without_runs_and_contradicting_options_are_errors(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["show", str(tmp_path)]) == 2
    assert "has no finished run" in capsys.readouterr().err
    assert cli.run(["show", str(tmp_path), "--md", "--json"]) == 2
    assert "leave one out" in capsys.readouterr().err
