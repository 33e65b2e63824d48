"""The terminal's renderer: layouts of bars, lines and tables, colors, and what it says of records that lack things."""

import io
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from support import counter_records, records
from support.kinds_of_runs import RUNS
from support.terminal import shown

from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.views.document import Chapter, Line, Lines, Numbers, Part, ShareBar, sparkline, verdict_lines
from charact.views.sections.profile.counters import SECTION as COUNTERS
from charact.views.tables import format as fmt
from charact.views.tables.format import OF_NO_TASK
from charact.views.tables.model import Cell, Column, Row, Table
from charact.views.terminal.renderer import drawn

NAMES = ["short", "a-name-of-many-letters"]


def lines_of(what: RenderableType, width: int) -> list[str]:
    Console(file=(stream := io.StringIO()), width=width).print(what)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def numbers(width: int, *cells: str, titles: tuple[str, ...] = ("time", "peak memory")) -> list[str]:
    columns = [Column("model", "model"), *(Column(title, title, fmt.number) for title in titles)]
    rows = [Row(name, [Cell(name), *map(Cell, cells or ("1.00 ms", "2.00 GB"))]) for name in NAMES]
    return lines_of(drawn(Numbers(Table("", columns, rows), titles)), width)


def test_names_are_next_to_their_numbers_above_them_or_above_a_list() -> None:
    # 22 of the name, 7 and 11 of the numbers, 2 between columns
    assert numbers(44) == [
        "model                      time  peak memory",
        "short                   1.00 ms      2.00 GB",
        "a-name-of-many-letters  1.00 ms      2.00 GB"]
    assert numbers(43) == ["     time  peak memory", "short", "  1.00 ms      2.00 GB",
                           "a-name-of-many-letters", "  1.00 ms      2.00 GB"]
    assert numbers(21)[:3] == ["short", "  time         1.00", "               ms"]


@pytest.mark.parametrize("width", [24, 30, 43, 44, 80, 120])
def test_no_width_cuts_a_name_or_a_number(width: int) -> None:
    text = "\n".join(numbers(width))
    assert [text.count(cell) for cell in [*NAMES, "1.00 ms", "2.00 GB"]] == [1, 1, 2, 2]
    assert max(map(len, text.splitlines())) <= width


def test_a_reason_that_all_rows_share_is_written_once() -> None:
    reason = "n/a (the batch size is not known)"
    assert numbers(80, "1.00 ms", reason)[-1] == f"peak memory: {reason}"
    assert "peak memory" in numbers(80, "1.00 ms", "n/a")[0]
    assert numbers(80, reason, "2.00 GB")[1:] == [  # the first number's column stays, with a footnote
        "short                   n/a [1]      2.00 GB", "a-name-of-many-letters  n/a [1]      2.00 GB",
        "[1] the batch size is not known."]


@pytest.mark.parametrize(("width", "cells"), [(10, 10), (100, 100), (150, 100)])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.333, 0.333, 0.334), (0.004, 0.006, 0.99), (1.0,)])
def test_a_bar_is_filled_by_its_shares(shares: tuple[float, ...], width: int, cells: int) -> None:
    parts = [Part(letter, share, "#000000", f"{letter} ms") for letter, share in zip("XYZ", shares, strict=False)]
    title, strip, *legend = lines_of(drawn(ShareBar("title", parts)), width)
    assert (title, len(strip)) == ("title", cells)
    assert all(abs(strip.count(part.name) - part.share_frac * cells) <= 1 for part in parts)
    assert "".join(sorted(strip)) == strip
    assert all(part.amount in " ".join(legend) for part in parts)


def test_letters_of_a_bar_are_distinct() -> None:
    names = ["data", "data", "d", "das", "1"]
    strip = lines_of(drawn(ShareBar("", [Part(name, 0.2, "#000000") for name in names])), 50)[1]
    assert [strip[number] for number in range(0, 50, 10)] == ["D", "A", "B", "S", "C"]


def test_lines_hang_and_chapters_are_indented() -> None:
    chapter = Chapter("title", [Lines([Line("one two three"), Line(("four", "strong"))]), Line("five")])
    _, title, *lines = lines_of(drawn(chapter), 11)
    assert title.startswith("title ─")
    assert lines == ["  one two", "    three", "  four", "", "  five"]


def test_a_command_at_the_end_of_a_sentence_has_a_line_of_its_own() -> None:
    lines = lines_of(drawn(verdict_lines("bottleneck", "data-bound", ["try this `charact run --x`", None])), 60)
    assert lines == ["bottleneck  data-bound", "try this:", "charact run --x"]


def test_a_sparkline_is_as_high_as_its_values_and_ends_with_the_last() -> None:
    assert sparkline([0.0, 3.5, float("nan"), 7.0]) == "▁▅█"
    assert (sparkline([2.0, 2.0]), sparkline([])) == ("▁▁", "")
    long = sparkline([*range(99), 0.0])
    assert (len(long), long[-1]) == (20, "▁")


def test_color_is_for_terminals_only(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in shown(record)
    colored = shown(record, color=True)
    assert "\x1b[38;2;68;119;170m" in colored  # forward's blue
    assert "48;2;68;119;170mF" in colored  # its letter on the same blue
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown(record, color=True)
    assert "38;2" not in plain
    assert "FFFFFFFF" in plain


@pytest.mark.parametrize("kind", RUNS)
def test_no_line_is_too_long_and_nothing_is_nan(kind: str, tmp_path: Path) -> None:
    text = shown(RUNS[kind](tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    assert "nan" not in text.replace("loss was nan", "").split()


def written(tmp_path: Path, entry: dict, tables: dict, **manifest: object) -> Path:
    writer = RunWriter(tmp_path, "r", dict(manifest))
    writer.add_case(typed_entry(entry), tables)
    return writer.close("complete")


def test_names_are_no_markup_and_runs_may_lack_cases_successes_or_passes(tmp_path: Path) -> None:
    assert "has no cases" in shown(RunWriter(tmp_path, "empty", {}).close("complete"))
    failed = records.case_entry("r", 32, "train", status="error", reason="model [broke]")
    assert shown(written(tmp_path, failed, {})).strip().endswith("r-32-b8-train-fp32-cpu  error: model [broke]")
    entry, tables = records.case_entry("[red]net", 32, "train"), records.case_tables("train", 32)
    entry["passes"]["memory"] = {"status": "failed", "reason": "no events"}
    entry["passes"]["timing"]["compile_s"] = 12.34
    del tables["memory"]
    text = shown(written(tmp_path, entry, tables), width=120)
    for part in ("[red]net-32", "Memory at the peak  n/a (no events)", "compiled in 12.3 s"):
        assert part in text


@pytest.mark.parametrize(("data", "warned"), [("synthetic", True), ("cifar10", False)])
def test_metrics_of_synthetic_data_have_a_warning(tmp_path: Path, data: str, warned: bool) -> None:
    for entry, tables in ((records.training_entry("r", 8), records.training_tables(8)),
                          (records.inference_entry("r", 8), records.inference_tables(8))):
        assert (OF_NO_TASK in shown(written(tmp_path, {**entry, "data": data}, tables), width=110)) is warned


def test_a_load_that_could_not_be_cold(tmp_path: Path) -> None:
    entry, tables = records.inference_entry("r", 8), records.inference_tables(8)
    entry["passes"]["inference"] |= {"cold_reason": "the page cache cannot be dropped", "compile_s": 7.5}
    tables["stages"] = [row for row in tables["stages"] if row["stage"] != "load_cold"]
    text = shown(written(tmp_path, entry, tables), width=120)
    assert "5.26 s with a warm load, cold load n/a (the page cache cannot be dropped), compiled in 7.50 s" in text
    assert "prediction, cold" not in text


BUSY = ("utilization_frac", 0.4, None)


@pytest.mark.parametrize(("rows", "expected"), [
    ([("gpm", *BUSY)], "GPU 40.0 % busy"), ([("amd", *BUSY)], "GPU 40.0 % busy"),
    ([("kineto", *BUSY)], "GPU 40.0 % busy"), ([("pm", *BUSY)], ""), ([], ""),
    # power is not summed over devices: the energy of one of them is not known
    ([("amd", "power_w", 300.0, None), ("rapl", "energy_j", 50.0, "cpu")],
     "cuda:0 300 W, cpu 25.0 W, 2.50 J an iteration"),
])  # fmt: skip
def test_the_line_of_counters(tmp_path: Path, rows: list[tuple[str, str, float, str | None]], expected: str) -> None:
    counters = [counter_records.row(source, counter, value) | ({"device": device} if device else {})
                for source, counter, value, device in rows]
    path = written(tmp_path, counter_records.gpu_entry(), {"counters": counters}, **counter_records.described())
    items = COUNTERS.summary(run := load_run(path), run.entries[0].case)
    assert [item.text for item in items if isinstance(item, Line)] == ([expected] if expected else [])
