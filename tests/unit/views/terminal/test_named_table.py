"""Tables with long names: beside the numbers, above them, or with each number on its line, and never cut."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from charact.views.terminal.renderer import NamedTable

NAMES = ["short", "a-name-of-many-letters"]


def lines(width: int) -> list[str]:
    table = NamedTable("model", "time", "peak memory")
    for name in NAMES:
        table.add_row(Text(name), Text("1.00 ms"), Text("2.00 GB"))
    Console(file=(stream := io.StringIO()), width=width).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_names_stand_beside_numbers_where_there_is_room() -> None:
    # 22 of the name, 7 and 11 of the numbers, 2 between columns
    assert lines(44) == [
        "model                      time  peak memory",
        "short                   1.00 ms      2.00 GB",
        "a-name-of-many-letters  1.00 ms      2.00 GB",
    ]


def test_names_stand_above_numbers_where_there_is_not() -> None:
    assert lines(43) == [
        "     time  peak memory",
        "short",
        "  1.00 ms      2.00 GB",
        "a-name-of-many-letters",
        "  1.00 ms      2.00 GB",
    ]


def test_numbers_too_wide_for_a_line_each_have_one() -> None:
    row = ["  time         1.00 ms", "  peak memory  2.00 GB"]
    told = NamedTable("model", "time", "peak memory", "and another")
    told.add_row(Text("name"), *map(Text, ["1.00 ms", "2.00 GB", "n/a (of a reason)"]))
    Console(file=(stream := io.StringIO()), width=40).print(told)
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "name", *row, "  and another  n/a (of a reason)"]  # fmt: skip


@pytest.mark.parametrize("width", [22, 30, 43, 44, 80, 120])
def test_no_width_cuts_a_name_or_a_number(width: int) -> None:
    told = "\n".join(lines(width))
    assert [told.count(text) for text in [*NAMES, "1.00 ms", "2.00 GB"]] == [1, 1, 2, 2]
    assert max(map(len, told.splitlines())) <= width
