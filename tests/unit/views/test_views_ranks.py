"""Runs of several ranks in the report and the terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.rank_records import slow, write_ranks

from charact.record.reader import load_run
from charact.views.html.report import sections
from charact.views.terminal.summary import summary


def shown(path: Path) -> tuple[dict[str, str], str]:
    """The report's sections by ID, and the terminal's text on one line."""
    run, stream = load_run(path), io.StringIO()
    Console(file=stream, width=150).print(summary(run))
    return {section.id: section.html for section in sections(run)}, " ".join(stream.getvalue().split())


def test_the_first_screen_names_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    html, text = shown(write_ranks(tmp_path))
    for view in (html["summary"], html["ranks"], text):
        assert "straggler rank 1 in backward, ranks wait for each other" in view.lower()
    assert html["summary"].count("Straggler rank 1") == 2  # the card of each rank
    assert "Who waits for whom" in html["ranks"]
    assert text.count("all ranks") == 1


@pytest.mark.parametrize("extra_s", [0.0, 0.001])
def test_balanced_ranks_keep_their_own_verdict(tmp_path: Path, extra_s: float) -> None:
    html, text = shown(write_ranks(tmp_path, slow(1, "backward", extra_s)))
    assert "balanced" in html["ranks"]
    assert "straggler rank" not in (html["summary"] + text).lower()
