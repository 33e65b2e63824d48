from pathlib import Path

import pytest
from support import pairs, records

from charact.analysis.compare import Group
from charact.record.reader import load_run
from charact.views.html.report import comparison_sections, unbroken
from charact.views.tensorboard.records import comparison

TRAIN = "resnet50-224-b8-train-fp32-cpu"


@pytest.mark.slow
def test_the_tab_shows_the_sections_of_the_report(tmp_path: Path) -> None:
    runs = pairs.pair(tmp_path, 1.2)
    found = comparison(runs)
    sides = [Group(f"{letter} resnet50", (run,)) for letter, run in zip("AB", runs, strict=True)]
    assert found == [{"id": part.id, "title": part.title, "html": unbroken(part.html)}
                     for part in comparison_sections(sides)]
    assert "B resnet50" in found[0]["html"]
    assert "1.200" in found[0]["html"]


@pytest.mark.slow
def test_runs_that_were_named_alike_are_sides_of_their_own(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path))
    html = comparison([run] * 3)[0]["html"]
    for label in ("A resnet50", "B resnet50", "C resnet50"):
        assert label in html


@pytest.mark.parametrize("sizes", [[(32,), (64, 128)], [(), ()], [(32,), ()]])
def test_runs_with_nothing_in_common_say_so(tmp_path: Path, sizes: list[tuple[int, ...]]) -> None:
    found = comparison([load_run(records.write_record(tmp_path, sizes=of_run)) for of_run in sizes])
    assert "no case in common" in found[0]["html"]


def test_a_training_and_a_profile_have_no_case_in_common(record: Path, tmp_path: Path) -> None:
    runs = [load_run(record), load_run(records.write_training(tmp_path))]
    assert "no case in common" in comparison(runs)[0]["html"]
