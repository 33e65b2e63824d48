"""The terminal's summary: its numbers, its plain form, and what it says of records that lack things."""

from pathlib import Path

import pytest
from support import records
from support.terminal import shown

from charact.record.writer import RunWriter


def test_headline_numbers(record: Path) -> None:
    text = shown(record)
    train = next(line for line in text.splitlines() if line.startswith("resnet50-224-b8-train"))
    assert train.split(maxsplit=1)[1].split() == ["100", "ms", "79.6", "1.94", "TFLOP/s", "345", "MiB"]
    assert "100 ms per iteration, 95 % interval 100.1–100.8 ms, 10 iterations" in text
    assert "B backward 50.2 ms 50.0 %" in text
    assert "W weights 97.3 MiB 28.2 %" in text
    assert "C convolution 66.0 ms 64.1 %" in text


@pytest.mark.parametrize("width", [80, 120])
def test_bars_are_full_and_no_line_is_too_long(record: Path, width: int) -> None:
    lines = shown(record, width=width).splitlines()
    assert max(map(len, lines)) <= width
    bar = next(line.strip() for line in lines if line.strip().startswith("DDDD"))
    assert len(bar) == min(width - 2, 100)
    # 10, 30, 1, 50, 8 and 1 % of the bar, each rounded to whole letters.
    assert [round(100 * bar.count(letter) / len(bar)) for letter in "DFB"] == pytest.approx([10, 30, 50], abs=1)


@pytest.mark.slow
def test_color_is_for_terminals_only(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in shown(record)
    colored = shown(record, color=True)
    assert "\x1b[38;2;68;119;170m" in colored  # forward's blue
    assert "■" in colored
    monkeypatch.setenv("NO_COLOR", "1")
    assert "38;2" not in shown(record, color=True)
    assert "FFFFFFFF" in shown(record, color=True)


def test_failed_cases_tell_status_and_reason(tmp_path: Path) -> None:
    text = shown(records.write_record(tmp_path, oom=True), width=120)
    assert "resnet50-4096-b8-train-fp32-cpu  oom: out of memory: asked for 64.0 GB" in text


def test_an_empty_run(tmp_path: Path) -> None:
    assert "has no cases" in shown(RunWriter(tmp_path, "r", {}).close("complete"))


def test_all_cases_failed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(records.case_entry("r", 32, "train", status="error", reason="model [broke]"), {})
    assert shown(writer.close("complete")).strip() == "r-32-b8-train-fp32-cpu  error: model [broke]"


def test_a_failed_pass_says_why(tmp_path: Path) -> None:
    entry = records.case_entry("r", 32, "train")
    entry["passes"]["memory"] = {"status": "failed", "reason": "no events"}
    tables = records.case_tables("train", 32)
    del tables["memory"]
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(entry, tables)
    text = shown(writer.close("complete"))
    assert "Memory at the peak  n/a (no events)" in text


def test_names_are_no_markup(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(records.case_entry("[red]net", 32, "train"), records.case_tables("train", 32))
    assert "[red]net-32" in shown(writer.close("complete"))
