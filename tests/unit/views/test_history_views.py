"""A history in the terminal and as a page: every number has its unit, and names are escaped."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.histories import CASE, run_at, synthetic_index
from support.pages import Page

from charact.analysis.history.index import Index
from charact.analysis.history.series import history
from charact.cli import run
from charact.views.html.history import history_page
from charact.views.tables import history_table as texts
from charact.views.tables.history_table import history_items, marks
from charact.views.terminal.renderer import print_items


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    pytest.importorskip("ruptures", reason="needs ruptures: pip install 'charact[history]'")
    return history(synthetic_index(np.repeat([0.100, 0.110], 12)), CASE, "time")


def test_a_row_has_date_commit_value_interval_and_mark(rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    print_items(history_items(rows, CASE, "time", 40))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Time of {CASE}"
    assert lines[2].split()[:5] == ["2026-11-01", "00:00", "0000000000", *texts.value("time", rows["value"][0]).split()]
    assert len([line for line in lines if "●" in line]) == 24
    (change,) = [line for line in lines if "+9.9 % (worse)" in line and "●" in line]
    assert change.startswith("2026-11-01 12:00")
    sentence = lines[-1].strip()
    assert sentence.startswith("2026-11-01 12:00: +9.9 % (worse), to 110 ms; commit")
    assert sentence.endswith("; commit 00b0000000 → 00c0000000")
    assert "1 change point in 24 values. Independent noise gives one in 1.0 % of such series" in "\n".join(lines)


def test_the_newest_rows_are_printed_and_all_are_sketched(rows: pd.DataFrame,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    print_items(history_items(rows, CASE, "time", 3))
    printed = capsys.readouterr().out
    assert printed.count("●") == 3
    assert "run-023" in printed
    assert "run-020" not in printed
    assert "All 24 runs: " in printed
    assert "--last 24 shows all" in printed


def test_marks_span_the_lowest_to_the_highest_value(rows: pd.DataFrame) -> None:
    drawn = marks(rows, rows)
    assert drawn[int(rows["value"].idxmin())].index("●") == 0
    assert drawn[int(rows["value"].idxmax())].index("●") == 23
    same = rows.assign(value=0.1, level=0.1)
    assert set(marks(same, same)) == {"●"}
    nothing = rows.assign(value=math.nan)
    assert set(marks(nothing, nothing)) == {""}


@pytest.mark.parametrize(("metric", "value", "low", "high", "shown", "interval"), [
    ("time", 0.0995, 0.099, 0.1003, "99.5 ms", "99.00–100.3 ms"),
    ("throughput", 80.4, 79.0, 81.0, "80.4", "79.00–81.00"),
    ("peak_memory", 2.5 * 2.0**30, math.nan, math.nan, "2.50 GiB", "n/a (a count: no variation)"),
    ("accuracy", 0.975, 0.97, 0.98, "97.5 %", "97.00–98.00 %"),
])
def test_a_value_has_its_unit(metric: str, value: float, low: float, high: float, shown: str, interval: str) -> None:
    (row,) = pd.DataFrame({"value": [value], "low": [low], "high": [high], "reason": ["a count: no variation"]}
                          ).itertuples()
    assert texts.value(metric, value) == shown
    assert texts.interval(metric, row) == interval


def test_a_run_without_a_value_has_the_reason() -> None:
    index = synthetic_index([0.1, 0.1])
    rows = history(index, CASE, "energy")
    table = texts.history_table(rows, CASE, "energy", rows)
    assert [row.cells[2].text for row in table.rows] == ["n/a (not measured)"] * 2
    assert table.note == "Change points need 10 runs with a value: there are 0."


def test_the_page_escapes_names_and_shows_the_change(rows: pd.DataFrame) -> None:
    page = history_page(rows.assign(run="<script>alert(1)</script>"), "<b>case</b>", "time")
    assert "<script>alert" not in page
    assert "<b>case" not in page
    words = Page(page).words
    assert "1 change point in 24 values" in words
    assert "<b>case</b>" in words
    assert "<svg" in page


def test_the_page_of_a_case_without_values_has_reasons() -> None:
    rows = history(synthetic_index([0.1, 0.1]), CASE, "energy")
    words = Page(history_page(rows, CASE, "energy")).words
    assert "n/a (not measured)" in words
    assert "nan" not in words.split()


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    for hour in (10, 11):
        run_at(out, f"2026-11-21T{hour}:00:00+0000")
    assert run(["history", str(out), "--to", str(tmp_path / "h.html")]) == 0
    assert "there are 2" in capsys.readouterr().out
    assert (tmp_path / "h.html").stat().st_size > 1000
    assert run(["history", str(out), "--to", str(tmp_path / "h.csv"), "--quiet"]) == 0
    assert len(pd.read_csv(tmp_path / "h.csv")) == 2
    assert run(["history", str(out), "--json"]) == 0
    assert '"value":' in capsys.readouterr().out
    for arguments, message in (
        (["--to", str(tmp_path / "h.csv")], "exists: --force overwrites it"),
        (["--to", str(tmp_path / "h.png")], "must end in .html or .csv"),
        (["--metric", "speed"], "'speed' is not one of accuracy, energy"),
        (["--case", "other"], "no run has the case 'other'"),
    ):
        assert run(["history", str(out), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert run(["history", str(tmp_path / "absent")]) == 2
    assert "holds no run.json" in capsys.readouterr().err


def test_several_machines_are_reported() -> None:
    index = synthetic_index([0.1] * 12)
    path = next(iter(index.runs))
    import msgspec

    runs = index.runs | {path: msgspec.structs.replace(index.runs[path], machine="another")}
    rows = history(Index(runs, {}, {}, None), CASE, "time")
    assert "several machines" in texts.note(rows, "time")
