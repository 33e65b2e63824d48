"""Tables on narrow screens: no word is cut, and names stay whole."""

import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from charact.views.tables.case_names import shared_end
from charact.views.terminal.fitted_table import FittedTable

CASES = [f"resnet18-{size}-b8-{mode}-fp32-cpu" for size in (32, 224) for mode in ("train", "infer")]
LABELS = ["20261128-050540-sizes-a479c3 (1)", "20261128-050540-sizes-a479c3 (2)"]
ROWS = [[case, "236 ms", "31.2 ms", "1.000", "0.7323–1.366", "inconclusive (disturbed)"] for case in CASES]


def drawn(titles: list[str], rows: list[list[str]], width: int) -> list[str]:
    table = FittedTable(titles, [[Text(cell) for cell in row] for row in rows],
                        [False, *[True] * (len(titles) - 2), False])
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("titles", [["Case", "before", "after"], ["Case", *LABELS]])
@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_no_word_is_cut(titles: list[str], width: int) -> None:
    lines = drawn([*titles, "Ratio", "95 % interval", "Verdict"], ROWS, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(case) == 1 for case in CASES)
    assert len(re.findall(r"\b236 ms\b", text)) == len(re.findall(r"0\.7323–1\.366", text)) == len(CASES)
    assert text.count("inconclusive") == text.count("(disturbed)") == len(CASES)
    assert all(part in text for title in titles[1:] for part in re.findall(r"[^-\s]+", title))


def test_the_widest_form_that_fits_is_drawn() -> None:
    titles = ["Case", "before", "after", "Ratio", "95 % interval", "Verdict"]
    assert drawn(titles, ROWS, 120)[1] == (
        f"{CASES[0]}   236 ms  31.2 ms  1.000   0.7323–1.366  inconclusive (disturbed)")
    assert drawn(titles, ROWS, 70)[1:3] == [
        CASES[0], "  236 ms  31.2 ms  1.000   0.7323–1.366  inconclusive (disturbed)"]
    assert drawn(titles, ROWS, 30)[:2] == [CASES[0], "  before         236 ms"]


def test_titles_break_after_hyphens() -> None:
    lines = drawn(["Case", *LABELS, "Verdict"], [["a", "1 s", "2 s", "slower"]], 60)
    assert lines == ["      20261128-050540-  20261128-050540-",
                     "Case  sizes-a479c3 (1)  sizes-a479c3 (2)  Verdict",
                     "a                  1 s               2 s  slower"]


def test_a_long_word_breaks_after_hyphens_before_values_are_listed() -> None:
    rows = [["2026-11-28", "236 ms", "20261128-050540-sizes-a479c3"]]
    assert drawn(["Date", "Time", "Run"], rows, 60)[1] == "2026-11-28  236 ms  20261128-050540-sizes-a479c3"
    assert drawn(["Date", "Time", "Run"], rows, 30) == [
        "    Time  Run", "2026-11-28", "  236 ms  20261128-050540-", "          sizes-a479c3"]


@pytest.mark.parametrize(("names", "end"), [
    (CASES, "-fp32-cpu"), (["a-cpu", "a-cpu"], ""), (["a", "b"], ""), (["x-cpu", "cpu"], ""), ([], ""),
])
def test_the_shared_end_of_names(names: list[str], end: str) -> None:
    assert shared_end(names) == end
