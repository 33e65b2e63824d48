"""Merging suites: the union of bricks and compositions, of suites that were cut alike."""

import json
import shutil
from pathlib import Path

import pytest
from support.captured_by_hand import branches, configuration

from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.index import load_suite, private_directory
from charact.bricks.suite.merge import merge
from charact.bricks.suite.writer import add_models, cut_model
from charact.core.errors import UserError


def written(place: Path, name: str, *, g: int = 2, method: str = "chains", batch_size: int = 2,
            stride: int = 1) -> Path:
    model = cut_model(branches(stride=stride), configuration(name, batch_size=batch_size), g, method)
    add_models(place, [model], g, method, "2.13.0")
    return place


def test_a_merged_suite_is_that_of_all_models_at_once(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", "one"), written(tmp_path / "b", "other", stride=2, batch_size=8)
    merged = merge([one, other], tmp_path / "merged")
    written(one, "other", stride=2, batch_size=8)
    assert merged.digest == load_suite(one).digest
    assert {path.read_bytes() for path in (tmp_path / "merged" / "bricks").iterdir()} == {
        path.read_bytes() for path in (one / "bricks").iterdir()}
    assert load_compositions(merged.private) == load_compositions(private_directory(one))


def test_suites_without_their_private_part_are_merged_all_the_same(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", "one"), written(tmp_path / "b", "other", stride=2)
    shutil.rmtree(private_directory(other))
    merged = merge([one, other], tmp_path / "merged")
    assert set(merged.bricks) == set(load_suite(one).bricks) | set(load_suite(other).bricks)
    assert [each.model for each in load_compositions(merged.private)] == ["one"]


def test_a_model_that_both_have_is_there_once(tmp_path: Path) -> None:
    merged = merge([written(tmp_path / "a", "one"), written(tmp_path / "b", "one")], tmp_path / "merged")
    assert len(load_compositions(merged.private)) == 1


@pytest.mark.parametrize(("g", "method", "told"), [(4, "chains", "-g 4"), (2, "paper", "--cut paper")])
def test_suites_that_were_cut_otherwise_are_refused(tmp_path: Path, g: int, method: str, told: str) -> None:
    suites = [written(tmp_path / "a", "one"), written(tmp_path / "b", "other", g=g, method=method)]
    with pytest.raises(UserError, match=f"{told}.*merge suites that were cut with the same options"):
        merge(suites, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_models_that_are_told_differently_are_refused(tmp_path: Path) -> None:
    suites = [written(tmp_path / "a", "one"), written(tmp_path / "b", "one", stride=2)]
    with pytest.raises(UserError, match="different compositions of one-8-b2-infer-fp32"):
        merge(suites, tmp_path / "merged")


def test_a_suite_is_not_merged_into(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", "one"), written(tmp_path / "b", "other")
    with pytest.raises(UserError, match="is already a suite"):
        merge([one, other], one)


def test_a_place_that_holds_something_else_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    suites = [written(tmp_path / "a", "one"), written(tmp_path / "b", "other")]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="do not belong to a suite of bricks"):
        merge(suites, tmp_path / "photos")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_suite_is_refused_also_where_another_has_the_brick(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", "one"), written(tmp_path / "b", "other")
    path = next((other / "bricks").iterdir())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"context_bytes": 1}))
    with pytest.raises(UserError, match="does not match the suite's index"):
        merge([one, other], tmp_path / "merged")
