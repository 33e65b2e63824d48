"""Reports of many runs: a summary of all of them, and the sections of the first ones only."""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from many_runs import write_copies
from matplotlib.figure import Figure
from support import records
from support.known_times import HELD, write_known
from support.pairs import pair

from charact import cli
from charact.analysis.compare import Group
from charact.analysis.profile.case_summary import repeated_cases
from charact.record.reader import Run, load_run
from charact.record.schema import TABLES
from charact.views.html import comparison as sections
from charact.views.html import drawing
from charact.views.html.report import report
from charact.views.html.tables_across_runs import MAX_ROWS, Summary, abbreviated_names
from charact.views.tables.model import Column, limited, table
from charact.views.terminal import progress as progress_module
from charact.views.terminal.progress import RunsProgress

CASE = "resnet50-32-b8-infer-fp32-cpu"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records.write_record(tmp_path_factory.mktemp("small"), sizes=(32,), modes=("infer",))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were drawn."""
    drawn: list[Figure] = []

    def draw(*arguments: Any, **named: Any) -> Figure:
        drawn.append(Figure(*arguments, **named))
        return drawn[-1]

    monkeypatch.setattr(drawing, "Figure", draw)
    return drawn


@pytest.mark.slow
def test_figures_do_not_grow_with_the_number_of_runs(tmp_path: Path, small: Path, figures: list[Figure]) -> None:
    numbers = []
    for num_runs in (3, 9):
        figures.clear()
        runs = list(map(load_run, write_copies(small, tmp_path / str(num_runs), num_runs)))
        words = html.unescape(report(runs, max_cases=2))
        numbers.append(len(figures))
        assert all(run.run_id in words for run in runs)
        num_left = num_runs - 2
        assert f"The sections of {num_left} of {num_runs} runs ({num_left} of {num_runs} cases) are left out" in words
        assert f"“charact report RUN” draws those of one run, “--max-cases {num_runs}” those of all." in words
    assert numbers[0] == numbers[1] > 0


@pytest.mark.slow
def test_each_table_of_a_run_is_read_once_and_released(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[Path, str]] = []
    runs = list(map(load_run, write_copies(small, tmp_path, 5)))
    most_held = 0

    def counting(original: Callable[[Run, str], Any]) -> Callable[[Run, str], Any]:
        def counted(run: Run, name: str) -> Any:
            nonlocal most_held
            read.append((run.path, name))
            most_held = max(most_held, sum(bool(other._tables) or other is run for other in runs))
            return original(run, name)

        return counted

    monkeypatch.setattr(Run, "_read", counting(Run._read))
    done: list[Run] = []
    report(runs, max_cases=0, on_run=done.append)
    assert [run.path for run in done] == [run.path for run in runs]
    assert len(read) == len(set(read)) <= len(runs) * len(TABLES)
    assert most_held == 1
    assert not any(run._tables or run.found for run in runs)


def test_a_released_run_keeps_what_it_was_given_and_reads_the_rest_again(small: Path) -> None:
    given = load_run(small).iterations.head(1)
    run = Run(small, load_run(small).manifest, _tables={"iterations": given})
    before = run.operators
    run.release()
    assert run.iterations is given
    assert run.operators is not before
    assert run.operators.equals(before)
    assert list(run.cases["case"]) == [CASE]


def test_cases_over_their_runs_come_first(tmp_path: Path, small: Path) -> None:
    found = Summary()
    for path in write_copies(small, tmp_path, 7):
        found.add(load_run(path))
    over_runs, every = found.tables()
    assert (over_runs.caption, every.caption) == ("Cases over their runs", "Every profiled case of every run")
    assert (len(over_runs.rows), len(every.rows)) == (1, 7)
    assert [cell.text for cell in over_runs.rows[0].cells][:2] == [CASE, "7"]


def test_disturbed_runs_are_named(tmp_path: Path) -> None:
    found = Summary()
    for name in ("slow", "fast", "other"):
        found.add(load_run(write_known(tmp_path, name=name, is_slow=name == "slow")))
    over_runs, every = found.tables()
    assert [cell.text for cell in over_runs.rows[0].cells][1] == "3, 1 disturbed by other programs"
    position = [column.title for column in every.columns].index("Reliability")
    assert [row.cells[position].text for row in every.rows] == [
        f"unreliable: {HELD}", *["n/a (no disturbance recorded)"] * 2]


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_comparison_says_at_the_top_that_runs_were_disturbed(tmp_path: Path, is_slow: bool) -> None:
    sides = [Group(name, (load_run(write_known(tmp_path, name=name, is_slow=is_slow and name == "b")),))
             for name in ("a", "b")]
    body = sections.comparison(sides)
    assert body.answer is not None
    assert ("Other programs disturbed runs" in (body.answer.more or "")) is is_slow
    tables = [block.table for block in body.blocks if block.title == "Cases that other programs disturbed"]
    assert [len(each.rows) for each in tables if each is not None] == [1] * is_slow


def test_a_sweep_has_one_row_a_case(tmp_path: Path, small: Path) -> None:
    found = Summary()
    for path in write_copies(small, tmp_path, 3, "sweep"):
        found.add(load_run(path))
    (every,) = found.tables()
    assert [row.case for row in every.rows] == [f"resnet50_00{number}-32-b8-infer-fp32-cpu" for number in range(3)]


@pytest.mark.slow
def test_numbers_of_a_case_over_its_runs(tmp_path: Path, small: Path) -> None:
    found = Summary()
    for path in write_copies(small, tmp_path, 7):
        found.add(load_run(path))
    cases = found.cases("profile")
    (row,) = repeated_cases(cases).to_dict("records")
    times = sorted(cases["median_s"])
    assert (row["num_runs"], row["num_ok"]) == (7, 7)
    assert [row[name] for name in ("median_s", "fastest_s", "slowest_s")] == [times[3], times[0], times[-1]]
    assert row["low_s"] < row["median_s"] < row["high_s"]
    few = repeated_cases(cases.head(2)).iloc[0]
    assert few[["low_s", "high_s"]].isna().all()
    assert repeated_cases(cases.head(1)).empty


def test_a_failed_case_counts_among_its_runs(tmp_path: Path) -> None:
    found = Summary()
    for number in range(3):
        found.add(load_run(records.write_record(tmp_path / str(number), sizes=(32,), modes=("infer",), oom=True)))
    over_runs, _ = found.tables()
    texts = {row.case: [cell.text for cell in row.cells] for row in over_runs.rows}
    failed = texts["resnet50-4096-b8-train-fp32-cpu"]
    assert failed[1:3] == ["0 of 3 succeeded", "n/a (no run succeeded)"]


def test_long_tables_say_how_many_rows_are_left_out() -> None:
    import pandas as pd

    shown = table(pd.DataFrame({"name": range(MAX_ROWS + 5)}), "Numbers", [Column("name", "Name")], "A note.")
    assert limited(shown, MAX_ROWS + 5, "charact export") is shown
    short = limited(shown, MAX_ROWS, "charact export")
    assert len(short.rows) == MAX_ROWS
    assert short.note == "A note. The first 2,000 rows; 5 more are left out: `charact export` writes all."


def test_names_of_many_runs_are_counted() -> None:
    assert abbreviated_names(["a", "a", "b"]) == "a, a, b"
    assert abbreviated_names(["a"] * 9) == "a"
    assert abbreviated_names([str(number) for number in range(9)]) == "0, 1, 2, 3, 5 others"


@pytest.mark.slow
def test_a_comparison_draws_the_cases_that_differ_most(
    tmp_path: Path, small: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "MAX_PLACES", 2)
    runs = tuple(map(load_run, write_copies(small, tmp_path, 5, "sweep")))
    sides = [Group("a", runs), Group("b", tuple(load_run(run.path) for run in runs))]
    compared, parts = sections.comparison(sides), sections.parts(sides)
    line = "Figures show the 2 of 5 cases that differ most; 3 are left out: compare fewer runs to see them."
    assert any(block.note == line for block in compared.blocks)
    assert line in parts.lead
    assert len(figures) == 1 + 2
    times = next(block.table for block in compared.blocks if block.title == "Times")
    assert times is not None
    assert len(times.rows) == 5


@pytest.mark.parametrize("modes", [("train",), ("train", "infer")])
def test_what_explains_each_case_is_drawn_before_any_table(tmp_path: Path, modes: tuple[str, ...]) -> None:
    """A single case has the page's whole width: it belongs to no column."""
    before, after = pair(tmp_path, 0.7, modes=modes, sizes=(32,))
    body = sections.explanations([Group("before", (before,)), Group("after", (after,))])
    assert [bool(block.figures) for block in body.blocks[:len(modes)]] == [True] * len(modes)
    assert len(body.blocks) > len(modes)
    assert all(block.folded for block in body.blocks[len(modes):])
    assert len({block.case for block in body.blocks} - {None}) == (len(modes) if len(modes) > 1 else 0)


@pytest.mark.slow
def test_the_command_draws_as_many_cases_as_it_is_told(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(path) for path in write_copies(small, tmp_path / "runs", 3)]
    assert cli.run(["report", *runs, "--to", str(tmp_path / "page.html"), "--max-cases", "0"]) == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count('id="run-') == 2
    assert "The sections of 1 of 3 runs" in text


class Screen:
    """Standard error that may be a terminal, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now_s)


def test_progress_is_a_line_every_ten_seconds_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen(monkeypatch)
    with RunsProgress("Reading", 300) as progress:
        for _ in range(300):
            screen.now_s += 0.125
            progress.advance()
    assert capsys.readouterr().err.splitlines() == [f"Reading: {number} of 300 runs" for number in (80, 160, 240)]


def test_progress_is_a_bar_on_a_terminal_after_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    screen = Screen(monkeypatch)
    with RunsProgress("Reading", 12) as progress:
        progress.advance()
        assert not capsys.readouterr().err
        for _ in range(5):
            screen.now_s += 0.5
            progress.advance()
        assert "6 of 12 runs" in capsys.readouterr().err


def test_quick_and_quiet_work_shows_no_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen(monkeypatch)
    with RunsProgress("Reading", 2, enabled=False) as progress:
        screen.now_s += 60
        progress.advance()
    with RunsProgress("Reading", 2) as progress:
        progress.advance()
    assert not capsys.readouterr().err
