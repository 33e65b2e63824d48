"""Runs of several ranks in the report and the terminal."""

import io
import json
from pathlib import Path

import pytest
from markupsafe import escape
from rich.console import Console
from support.rank_records import slow, write_ranks

from charact.core.errors import UserError
from charact.record.in_progress import write_manifest
from charact.record.reader import load_run
from charact.views.html.report import sections
from charact.views.summary import summary
from charact.views.terminal.renderer import drawn

HTML = "<script>alert(1)</script>"


def shown(path: Path) -> tuple[dict[str, str], str]:
    """The report's sections by ID, and the terminal's text on one line."""
    run, stream = load_run(path), io.StringIO()
    Console(file=stream, width=150).print(drawn(summary(run)))
    return {section.id: section.html for section in sections(run)}, " ".join(stream.getvalue().split())


def test_the_first_screen_names_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    html, text = shown(write_ranks(tmp_path))
    for view in (html["summary"], html["ranks"], text):
        assert "straggler rank 1 in backward, ranks wait for each other" in view.lower()
    assert html["summary"].count("Straggler rank 1") == 2  # the card of each rank
    assert "Who waits for whom" in html["ranks"]
    assert text.count("all ranks") == 1
    assert text.count("Time by phase") == 2
    assert "n/a" not in text.partition("all ranks")[2]  # no second verdict next to the straggler's


@pytest.mark.parametrize("extra_s", [0.0, 0.001])
def test_balanced_ranks_keep_their_own_verdict(tmp_path: Path, extra_s: float) -> None:
    html, text = shown(write_ranks(tmp_path, slow(1, "backward", extra_s)))
    assert "balanced" in html["ranks"]
    assert "straggler rank" not in (html["summary"] + text).lower()


def test_ends_of_ranks_are_escaped(tmp_path: Path) -> None:
    path = write_ranks(tmp_path)
    manifest = json.loads((path / "run.json").read_text(encoding="utf-8"))
    manifest["ranks"][1] |= {"ending": f"ValueError: {HTML}", "traceback": f"Traceback {HTML}", "hostname": HTML}
    write_manifest(path, manifest)
    html, text = shown(path)
    assert html["ranks"].count(str(escape(HTML))) >= 2
    assert HTML not in html["ranks"]
    assert "straggler rank 1" in text.lower()


def test_a_manifest_with_too_many_ranks_is_rejected(tmp_path: Path) -> None:
    path = write_ranks(tmp_path)
    write_manifest(path, json.loads((path / "run.json").read_text(encoding="utf-8")) | {"world_size": 2**52})
    with pytest.raises(UserError, match="world_size"):
        load_run(path)
