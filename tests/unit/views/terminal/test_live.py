"""The live view: what its panel says, and that the terminal's other lines stay as they are."""

import os
import pty
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from support.screen import Screen
from support.terminal import set_size

from charact.analysis.profile.machine_speed import Speed
from charact.views.terminal.bottom_lines import BottomLines
from charact.views.terminal.live import NUM_LINES, RankState, State, line, panel, ranks_line, ranks_panel

SPEED = Speed(
    True, 50, 0.020, 3200.0, {"forward": 0.3, "backward": 0.45, "data": 0.2, "update": 0.05}, "backward", False
)
STATE = State("train", 1234, SPEED, 0.1, 1_500_000_000)
NUM_ROWS, WIDTH = 24, 80


def shown(state: State, *, width: int = WIDTH, color: bool = False) -> list[str]:
    return panel(state, Console(width=width, force_terminal=color, color_system="truecolor" if color else None))


def test_the_panel_tells_pace_shares_and_bottleneck() -> None:
    title, verdict, numbers, bar, *legend = shown(STATE)
    assert title.startswith("charact train, training, iteration 1,234 ──")
    assert verdict.strip() == "most time is spent in backward: 45.0 %"
    assert numbers.strip() == "20.0 ms per iteration, 3,200 samples/s, memory 1.40 GiB"
    assert [bar.count(letter) for letter in "DFBU"] == [16, 24, 36, 4]
    assert "backward 9.00 ms 45.0 %" in " ".join(legend)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("color", [False, True])
def test_it_is_no_larger_than_it_may_be(width: int, color: bool) -> None:
    for state in (STATE, replace(STATE, speed=None), replace(STATE, name="long name " * 30)):
        lines = shown(state, width=width, color=color)
        screen = Screen(NUM_LINES, width)
        screen.feed("\r\n".join(lines))
        assert len(lines) <= NUM_LINES
        assert not screen.scrolled


@pytest.mark.parametrize(("bottleneck", "words"), [
    ("data", "data-bound: 20.0 % of the time is spent waiting for batches"),
    ("communication", "communication-bound: 50.0 % of the time"),
    ("other", "mostly outside of any phase: 40.0 % of the time"),
])
def test_what_bounds_it_is_said_in_words(bottleneck: str, words: str) -> None:
    shares = {"data": 0.2, "communication": 0.5, "other": 0.4}
    speed = replace(SPEED, share_frac=shares, bottleneck=bottleneck, is_bound=True)
    assert words in line(replace(STATE, speed=speed))


def test_a_line_tells_the_same() -> None:
    assert line(STATE) == (
        "train, training, iteration 1,234: 20.0 ms per iteration, 3,200 samples/s, memory 1.40 GiB; "
        "data 20.0 %, forward 30.0 %, backward 45.0 %, update 5.0 %; most time is spent in backward: 45.0 %")


@pytest.mark.parametrize(("changes", "words"), [
    ({"speed": None, "since_s": 12.3}, "train: no iteration has finished in 12.0 s"),
    ({"since_s": 7.4}, "no iteration has finished for 7.00 s"),
    ({"since_s": 2.9}, "most time is spent in backward"),
    ({"speed": replace(SPEED, samples_per_s=None)}, "samples/s n/a (the batch size is not known), memory"),
    ({"memory_bytes": None}, "memory n/a (the process has ended)"),
    ({"speed": replace(SPEED, training=False)}, "train, inference, iteration"),
])
def test_what_is_not_there_is_said(changes: dict[str, Any], words: str) -> None:
    assert words in line(replace(STATE, **changes))


class Terminal:
    """A pseudo-terminal, and the screen that shows what was written to it."""

    def __init__(self) -> None:
        self._master, self.descriptor = pty.openpty()
        set_size(self.descriptor, NUM_ROWS, WIDTH)
        self.screen = Screen(NUM_ROWS, WIDTH)

    def resize(self, num_rows: int) -> None:
        set_size(self.descriptor, num_rows, WIDTH)
        self.screen.resize(num_rows, WIDTH)

    def write(self, text: str) -> None:
        os.write(self.descriptor, text.encode())
        self.look()

    def look(self) -> None:
        """Take in what was written; a mark tells where that ends."""
        os.write(self.descriptor, b"\x1b[0m\x1b[9999m")
        written = b""
        while not written.endswith(b"\x1b[9999m"):
            written += os.read(self._master, 65536)
        self.screen.feed(written.decode())

    def others(self) -> list[str]:
        """What others have written: all of it but the reserved lines."""
        rows = self.screen.scrolled + self.screen.rows
        return [row for row in rows if row and not row.startswith("panel")]

    def close(self) -> None:
        os.close(self._master)
        os.close(self.descriptor)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


PANEL = [f"panel {number}" for number in range(NUM_LINES)]


@pytest.mark.parametrize("num_before", [0, 3, 17, 18, 23, 24, 60])
def test_what_others_write_scrolls_above_the_lines(terminal: Terminal, num_before: int) -> None:
    bottom = BottomLines(terminal.descriptor, NUM_LINES)
    for number in range(num_before):
        terminal.write(f"before {number}\n")
    terminal.write("half a line, ")
    for number in range(40):
        bottom.draw(PANEL)
        terminal.write(f"after {number}\n")
    assert terminal.screen.rows[-NUM_LINES:] == PANEL
    expected = [*(f"before {number}" for number in range(num_before)), "half a line, after 0",
                *(f"after {number}" for number in range(1, 40))]
    assert terminal.others() == expected
    bottom.release()
    terminal.write("the end")
    assert terminal.screen.is_whole
    assert terminal.others() == [*expected, "the end"]
    assert not any("panel" in row for row in terminal.screen.rows + terminal.screen.scrolled)


@pytest.mark.parametrize("num_rows", [15, 20, 23, 30, 50])
def test_a_change_of_size_moves_the_lines(terminal: Terminal, num_rows: int) -> None:
    bottom = BottomLines(terminal.descriptor, NUM_LINES)
    for number in range(30):
        bottom.draw(PANEL)
        terminal.write(f"line {number}\n")
        if number == 20:
            terminal.resize(num_rows)
    bottom.draw(PANEL)
    terminal.look()
    assert terminal.screen.rows[-NUM_LINES:] == PANEL
    assert sum(row.startswith("panel") for row in terminal.screen.rows) == NUM_LINES
    assert terminal.others() == [f"line {number}" for number in range(30)]


def test_another_may_give_the_lines_back(terminal: Terminal) -> None:
    bottom = BottomLines(terminal.descriptor, NUM_LINES)
    assert bottom.restoring == ""
    terminal.write("line\n")
    bottom.draw(PANEL)
    terminal.write(bottom.restoring)
    assert terminal.screen.is_whole
    assert terminal.screen.rows == ["line"] + [""] * (NUM_ROWS - 1)
    assert (terminal.screen.row, terminal.screen.column) == (1, 0)


def test_a_terminal_that_is_too_small_is_left_alone(terminal: Terminal) -> None:
    terminal.resize(NUM_LINES + 4)
    bottom = BottomLines(terminal.descriptor, NUM_LINES)
    bottom.draw(PANEL)
    terminal.write("line")
    assert terminal.screen.rows == ["line"] + [""] * (NUM_LINES + 3)
    assert bottom.restoring == ""


def test_a_terminal_that_has_gone_is_no_error() -> None:
    terminal = Terminal()
    bottom = BottomLines(terminal.descriptor, NUM_LINES)
    bottom.draw(PANEL)
    terminal.close()
    bottom.release()
    assert bottom.restoring == ""


def of_rank(rank: int, share_frac: dict[str, float], ending: str | None = None) -> RankState:
    speed = Speed(True, 50, 0.020, None, share_frac, "backward", False)
    return RankState(rank, State("train", 100 + rank, speed, 0.1, None), ending)


def test_each_rank_has_a_line_and_the_one_that_waits_least_is_marked() -> None:
    ranks = [of_rank(0, {"backward": 0.2, "communication": 0.7, "forward": 0.1}),
             of_rank(1, {"backward": 0.2, "communication": 0.1, "data": 0.7}),
             of_rank(2, {"backward": 0.1, "communication": 0.75, "forward": 0.15})]
    title, *lines = ranks_panel(ranks, Console(width=100))
    assert title.startswith("charact train, 3 ranks ──")
    assert [line.strip() for line in lines] == [
        "rank 0: iteration 100, 20.0 ms, communication 70.0 %, backward 20.0 %",
        "rank 1: iteration 101, 20.0 ms, data 70.0 %, backward 20.0 %, the others wait for it",
        "rank 2: iteration 102, 20.0 ms, communication 75.0 %, forward 15.0 %"]
    assert ranks_line(ranks).count("the others wait for it") == 1


def test_a_rank_that_was_killed_says_so_and_no_other_is_awaited() -> None:
    ranks = [of_rank(0, {"backward": 1.0}), of_rank(1, {"data": 1.0}, "killed")]
    assert ranks_line(ranks) == ("train: rank 0: iteration 100, 20.0 ms, backward 100.0 %; "
                                 "rank 1: iteration 101, killed")
