"""Suites: the union of bricks, written whole, read back as they were, and refused in one line where they are not."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.captured_by_hand import ByHand, branches, configuration

from charact.bricks.suite.brick import brick_from_json, brick_to_json
from charact.bricks.suite.captured_graph import Json
from charact.bricks.suite.composition import CutModel, cut_model, load_compositions, read_composition
from charact.bricks.suite.suite import (
    Suite,
    add_models,
    brick_path,
    check_place,
    index_bytes,
    load_suite,
    perturbed,
    private_directory,
    suite_lock,
)
from charact.bricks.value_distributions import mixture
from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError


def hand(name: str = "hand", g: int = 2, mode: str = "infer", batch_size: int | None = 2, **changed: Any) -> CutModel:
    captured = branches(training=mode == "train", **changed)
    return cut_model(captured, configuration(name=name, mode=mode, batch_size=batch_size), g, "chains")


def write(place: Path, *models: CutModel, g: int = 2) -> Suite:
    return add_models(place, models, g, "chains", "2.13.0").suite


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    write(tmp_path / "suite", hand())
    return tmp_path / "suite"


def test_values_of_image_models_are_stored_as_they_are(tmp_path: Path) -> None:
    what = replace(configuration(), facts={"input_kind": "image"})
    model = cut_model(branches(), what, 2, "chains")
    suite = add_models(tmp_path / "suite", [model], 2, "chains", "2.13.0").suite
    assert {name: suite.brick(name) for name in suite.bricks} == {brick.id: brick for brick in model.bricks}


def test_bricks_are_read_as_they_were_written(tmp_path: Path) -> None:
    model = hand(mode="train")
    suite = write(tmp_path / "suite", model)
    assert {name: suite.brick(name) for name in suite.bricks} == {brick.id: perturbed(brick) for brick in model.bricks}
    assert load_compositions(suite.private) == [model.composition]
    assert (suite.name, suite.g, suite.method, suite.torch) == ("suite", 2, "chains", "2.13.0")


def test_a_brick_that_stands_twice_tells_the_values_of_both_places() -> None:
    made = ByHand()
    x = made.leaf("input", torch.randn(4, 4))
    y = made.add("relu.default", x)
    model = made.model(made.add("relu.default", y))
    samples: Json = {x.number: {"quantiles": [-1.0, 1.0]}, y.number: {"quantiles": [0.0, 0.5]}}
    found = cut_model(replace(model, samples=model.samples | samples), configuration(), 1, "chains")
    assert len(found.composition.pieces) == 2
    (brick,) = found.bricks
    assert brick.inputs[0].sample == mixture(list(samples.values()))


def test_the_index_says_what_bricks_are(tmp_path: Path) -> None:
    suite = write(tmp_path / "suite", hand(mode="train"))
    told = {(entry["kind"], entry["mode"], *entry["layer_types"]) for entry in suite.bricks.values()}
    assert told >= {("sequence", "train", "conv2d", "batch_norm"), ("update", "train", "update"),
                    ("gradient_sum", "train", "add")}  # fmt: skip
    assert all((entry["batch_sizes"], entry["precision"], entry["precisions"]) == ([2], "fp32", ["fp32"])
               for entry in suite.bricks.values())


def test_a_training_has_updates_and_sums_where_gradients_meet() -> None:
    composition = hand(mode="train").composition
    # Three convolutions' weights are alike, and so are scale and shift; two branches read one value.
    assert sorted(number for _, number in composition.updates) == [2, 3]
    assert [number for _, number in composition.gradient_sums] == [1]
    assert hand().composition.updates == hand().composition.gradient_sums == ()


def test_models_that_share_layers_make_the_union(tmp_path: Path) -> None:
    one, other = hand("one"), hand("other", stride=2)
    shared = {brick.id for brick in one.bricks} & {brick.id for brick in other.bricks}
    first = add_models(tmp_path / "a", [one], 2, "chains", "2.13.0")
    assert first.num_new == len(one.bricks)
    second = add_models(tmp_path / "a", [other], 2, "chains", "2.13.0")
    assert second.num_new == len(other.bricks) - len(shared)
    assert set(second.suite.bricks) == {brick.id for brick in [*one.bricks, *other.bricks]}
    at_once = write(tmp_path / "b", one, other)
    assert at_once.bricks == second.suite.bricks
    assert at_once.digest == second.suite.digest


def test_the_same_model_at_another_batch_size_has_the_same_bricks_noted_for_both(tmp_path: Path) -> None:
    # By hand both have the same shapes; what differs is what they are called.
    suite = write(tmp_path / "suite", hand(batch_size=8), hand(batch_size=2), hand(name="file", batch_size=None))
    assert {tuple(entry["batch_sizes"]) for entry in suite.bricks.values()} == {(2, 8)}
    assert {composition.batch_size for composition in load_compositions(suite.private)} == {2, 8, None}


def test_adding_a_model_again_changes_nothing(suite: Path) -> None:
    before = {path: path.read_bytes() for path in suite.rglob("*.json")}
    added = add_models(suite, [hand()], 2, "chains", "9.9.9")
    assert added.num_new == 0
    assert {path: path.read_bytes() for path in suite.rglob("*.json")} == before


def test_all_files_bear_one_time_and_stand_in_the_order_of_their_names(tmp_path: Path) -> None:
    place = tmp_path / "suite"
    write(place, hand(stride=2))
    write(place, hand("other"))
    assert len({path.stat().st_mtime_ns for path in [place, *place.rglob("*")]}) == 1
    listed = list(json.loads((place / "suite.json").read_text())["bricks"])
    assert listed == sorted(path.stem for path in (place / "bricks").iterdir())


def test_what_a_kill_left_behind_is_removed(suite: Path) -> None:
    (suite / "bricks" / "0123456789abcdef.json").write_text("{}")
    (suite / "bricks" / ".0123").write_text("{}")
    (suite / "suite.json").rename(suite / f".{'0' * 16}")
    assert check_place(suite, 2, "chains") is None
    kept = set(write(suite, hand("other")).bricks)
    assert {path.name for path in (suite / "bricks").iterdir()} == {f"{brick}.json" for brick in kept}
    assert {path.name for path in suite.iterdir()} == {"bricks", "suite.json"}


def test_two_writers_do_not_meet(suite: Path) -> None:
    with suite_lock(suite), pytest.raises(UserError, match="written by another process"):
        write(suite, hand("other"))
    write(suite, hand("other"))


def test_nothing_changes_where_writing_fails(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (suite / "suite.json").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="no space left"):
        write(suite, hand("other", stride=2))
    monkeypatch.undo()
    assert (suite / "suite.json").read_bytes() == before
    assert not [path for path in suite.rglob(".*") if path.is_file()]


@pytest.mark.parametrize(("g", "method", "told"), [(4, "chains", "-g 2 --cut chains"), (2, "paper", "--cut paper")])
def test_a_suite_is_cut_in_one_way(suite: Path, g: int, method: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_place(suite, g, method)


def test_another_directory_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    with pytest.raises(UserError, match="do not belong to a suite of bricks"):
        write(tmp_path / "photos", hand())
    with pytest.raises(UserError, match="cannot write"):
        write(tmp_path / "photos" / "cat.jpg", hand())
    assert check_place(tmp_path / "new", 1, "chains") is None


def changed(old: str, new: str) -> Callable[[Path, Path], object]:
    """Replace a text of the index."""
    return lambda index, brick: index.write_text(index.read_text().replace(old, new))


def rewritten(change: Callable[[dict[str, Any], str], object]) -> Callable[[Path, Path], object]:
    """Change the index's entries, and its hash with them."""
    def write_index(index: Path, brick: Path) -> None:
        entries = json.loads(index.read_text())["bricks"]
        change(entries, brick.stem)
        index.write_bytes(index_bytes(2, "chains", "2.13.0", entries))

    return write_index


def renamed(index: Path, brick: Path) -> None:
    brick.rename(brick.with_stem("0" * 16))
    rewritten(lambda entries, name: entries.update({"0" * 16: entries.pop(name)}))(index, brick)


@pytest.mark.parametrize(("breaks", "told"), [
    (lambda index, brick: brick.unlink(), "is missing from"),
    (lambda index, brick: brick.write_text(brick.read_text().replace("outputs", "output")), "does not match the suite"),
    (changed('"g": 2', '"g": 4'), "changed after it was written"),
    (changed('"schema_version": 1', '"schema_version": 99'), "update charact"),
    (lambda index, brick: index.write_text('{"format": "other", "schema_version": 1}'), "not part of a suite"),
    (lambda index, brick: index.write_text("{"), "not part of a suite"),
    (changed('"g": 2', '"g": NaN'), "not part of a suite"),
    (lambda index, brick: index.write_text("[" * 100_000), "not part of a suite"),
    (lambda index, brick: shutil.rmtree(index.parent), "no suite of bricks in"), (renamed, "holds brick"),
    (rewritten(lambda entries, name: entries[name].update(layer_types="<script>")), "not part of a suite"),
    (rewritten(lambda entries, name: entries[name].pop("mode")), "not part of a suite"),
    (rewritten(lambda entries, name: entries[name].update(num_layers=-1)), "Expected `int` >= 0"),
    (rewritten(lambda entries, name: entries[name].update(batch_sizes=[-8])), "Expected `int` >= 0"),
    (lambda index, brick: index.write_bytes(index_bytes(-1, "chains", "2.13.0", {})), "Expected `int` >= 0"),
])  # fmt: skip
def test_what_is_broken_is_refused_in_one_line(suite: Path, breaks: Callable[[Path, Path], object], told: str) -> None:
    breaks(suite / "suite.json", next((suite / "bricks").iterdir()))
    with pytest.raises(UserError, match=told) as caught:
        read_all(suite)
    assert "\n" not in str(caught.value)


def read_all(suite: Path) -> None:
    loaded = load_suite(suite)
    for name in loaded.bricks:
        loaded.brick(name)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_any_byte_is_one_line_or_none(suite: Path, data: st.DataObject) -> None:
    files = sorted(suite.rglob("*.json"))
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(place, min(place + 8, len(whole))))
    other = whole[:place] + data.draw(st.binary(max_size=8)) + whole[end:]
    path.write_bytes(other)
    try:
        if json_or_none(other) == json_or_none(whole):
            return
        with pytest.raises(UserError) as caught:
            read_all(suite)
        assert "\n" not in str(caught.value)
    finally:
        path.write_bytes(whole)


def json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_composition_with_anything_in_it_is_read_or_refused_in_one_line(suite: Path, data: st.DataObject) -> None:
    (path,) = private_directory(suite).glob("*.json")
    entry = json.loads(path.read_text())
    other = path.with_name("changed.txt")
    entry[data.draw(st.sampled_from([*entry, "more"]))] = data.draw(JSON)
    other.write_text(json.dumps(entry))
    assert "\n" not in refusal(other)


def refusal(path: Path) -> str:
    """Why a composition is refused; empty where it is not."""
    try:
        read_composition(path)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("change", [
    {"schema_version": 2}, {"pieces": [{"brick": "a", "inputs": [[0, 0]], "modules": []}]},
    {"updates": [["a", "many"]]}, {"outputs": [1]}, {"surprise": 1},
    {"weights_bytes": "many"}, {"outputs": [[99, 0]]}, {"num_layers": None},
])  # fmt: skip
def test_a_composition_that_is_none_is_refused(suite: Path, change: dict[str, Any]) -> None:
    (path,) = private_directory(suite).glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=r"update charact|is not a composition"):
        read_composition(path)


def test_no_compositions_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no compositions in"):
        load_compositions(tmp_path)


def test_bricks_are_named_by_their_identifiers(suite: Path) -> None:
    loaded = load_suite(suite)
    assert all(brick_path(suite, name).exists() for name in loaded.bricks)
    assert replace(loaded, path=Path(".")).name == Path.cwd().name
    with pytest.raises(UserError, match="has no brick feedfeedfeedfeed"):
        loaded.brick("feedfeedfeedfeed")


def test_a_name_that_is_longer_than_a_file_s_is_kept_whole_inside(tmp_path: Path) -> None:
    """A model may be named after a file whose own name is as long as can be, to which its sizes are added."""
    one, other = hand("n" * 250), hand("n" * 250 + "o")
    suite = write(tmp_path / "suite", one, other)
    assert sorted(each.case for each in load_compositions(suite.private)) == [
        one.composition.case, other.composition.case]


def test_it_is_told_which_model_took_the_place_of_another(tmp_path: Path) -> None:
    place = tmp_path / "suite"
    first = add_models(place, [hand()], 2, "chains", "2.13.0")
    again = add_models(place, [hand()], 2, "chains", "2.13.0")
    changed = add_models(place, [hand(stride=2)], 2, "chains", "2.13.0")
    assert (first.replaced, again.replaced, changed.replaced) == ([], [], ["hand-8-b2-infer-fp32"])


class TestLimits:
    def test_no_file_is_read_that_is_larger(self, suite: Path) -> None:
        (path,) = private_directory(suite).glob("*.json")
        with limited_to(200):
            for read in (lambda: load_suite(suite), lambda: read_composition(path)):
                with pytest.raises(UserError, match="raise the limit"):
                    read()

    def test_a_pipe_is_not_waited_for(self, suite: Path) -> None:
        (suite / "suite.json").unlink()
        os.mkfifo(suite / "suite.json")
        with pytest.raises(UserError, match="is not a regular file"):
            load_suite(suite)

    @pytest.mark.parametrize("change", [
        {"sample": {}}, {"sample": {"quantiles": []}}, {"sample": {"quantiles": ["x"]}}, {"sample": {"constant": "x"}},
        {"sample": {"quantiles": [1.0] * 5000}}, {"sample": {"weight": "zeros"}}, {"sample": {"low": 1, "high": 0}},
        {"sample": {"low": 0, "high": 2**80}}, {"sample": {"weight": "normal", "constant": 1.0}},
        {"sample": {"weight": "normal", "code": "x"}}, {"sample": {"quantiles": [0.0], "infinite": {"nan": 1.0}}},
        {"sample": {"quantiles": [0.0], "alike": {"channel": 1.0}}}, {"shape": [2**64]}, {"stride": [True]},
        {"sample": {"whole": "eJw="}, "shape": [2**20], "stride": [1]},
    ])
    def test_an_input_that_is_none_is_refused(self, suite: Path, change: Json) -> None:
        whole = load_suite(suite)
        entry = brick_to_json(whole.brick(next(iter(whole.bricks))))
        entry["inputs"][0] |= {"shape": [4], "stride": [1], **change}
        with pytest.raises(ValueError, match=r"\w"):
            brick_from_json(entry)
