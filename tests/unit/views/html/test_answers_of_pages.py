"""The answer of a page: names of cases in its actions."""

from pathlib import Path

from support.pages import words_of
from support.records import case_entry, manifest, publish

from charact.record.reader import load_run


def test_every_case_of_an_action_has_its_short_name(tmp_path: Path) -> None:
    run = load_run(publish(tmp_path, "resnet50", manifest("profile", "resnet50"), *(
        (case_entry("resnet50", size, "train", status="oom", reason="out of memory"), {}) for size in (32, 224))))
    summary = words_of(run)["summary"]
    assert "32 px, 224 px" in summary
    assert "resnet50-224-b8" not in summary
