"""What a suite shows: nothing of names, weights and order, searched in its bytes; and what should not be there."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.captured_by_hand import branches, configuration
from support.hand_made_bricks import a_brick, a_layer, a_suite, an_input

from charact.bricks.capture.capture import capture
from charact.bricks.commands._models import sources_of
from charact.bricks.suite.audit import audit
from charact.bricks.suite.brick import canonical
from charact.bricks.suite.captured_graph import CapturedModel
from charact.bricks.suite.composition import CutModel, cut_model, drawn_decoys, load_compositions
from charact.bricks.suite.suite import add_models, load_suite, private_directory
from charact.core.errors import UserError

MODEL, MODULE = "secret_net", "hidden_blocks.layer7"


def hand(name: str = MODEL, mode: str = "infer", **changed: Any) -> CutModel:
    return cut_model(branches(module=MODULE, training=mode == "train", **changed), configuration(name, mode=mode), 2,
                     "chains")  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    add_models(tmp_path / "suite", [hand(), hand(mode="train")], 2, "chains", "2.13.0")
    return tmp_path / "suite"


def public_bytes(suite: Path) -> bytes:
    """Names and contents of all that a suite's directory holds."""
    names = b"\n".join(str(path.relative_to(suite)).encode() for path in sorted(suite.rglob("*")))
    return names + b"\n".join(path.read_bytes() for path in sorted(suite.rglob("*")) if path.is_file())


def check_nothing_is_told(suite: Path, captured: CapturedModel, secrets: list[str]) -> None:
    """Search a suite's bytes, whose private part was taken away, for names, weights and runs of bricks."""
    compositions = load_compositions(private_directory(suite))
    shutil.rmtree(private_directory(suite))
    found = public_bytes(suite)
    modules = {layer.module for layer in captured.layers}
    parts = {part for module in modules for part in module.split(".")}
    # Words such as `attention` are in the names of operators as well; `layers` and `value` are keys of its files.
    words = " ".join(["layers", "value", *(layer.operator for layer in captured.layers)])
    hidden = [name for name in modules if "." in name] + [part for part in parts if len(part) > 3 and part not in words]
    assert hidden
    for secret in [*secrets, *hidden]:
        assert secret.lower().encode() not in found.lower(), secret
    for value, kind in captured.leaves.items():
        if kind in ("weight", "buffer") and captured.tensors[value].is_floating_point():
            tensor = captured.tensors[value].detach().reshape(-1)
            assert tensor.numpy().tobytes()[:16] not in found or not tensor.any()
            numbers = [repr(number) for number in tensor.tolist()[:50] if number not in (0.0, 1.0)]
            assert not [number for number in numbers if number.encode() in found]
    for composition in compositions:
        order = [piece.brick.encode() for piece in composition.pieces]
        assert not [pair for pair in pairwise(order) if re.search(rb'"%b",\s*"%b"' % pair, found)]
    listed = list(json.loads((suite / "suite.json").read_bytes())["bricks"])
    assert listed == sorted(listed)
    assert len({path.stat().st_mtime_ns for path in suite.rglob("*")}) == 1
    assert audit(suite).findings == []


def test_nothing_is_told_of_a_model_by_hand(tmp_path: Path) -> None:
    captured = branches(module=MODULE)
    add_models(tmp_path / "suite", [hand()], 2, "chains", "2.13.0")
    check_nothing_is_told(tmp_path / "suite", captured, [MODEL, MODULE, "hidden_blocks"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode", "size"), [
    ("resnet18", "infer", 32), pytest.param("transformer", "train", 6, marks=pytest.mark.slow),
])
def test_nothing_is_told_of_a_workload(tmp_path: Path, name: str, mode: str, size: int) -> None:
    (source,) = sources_of([name], input_sizes=[size], batch_sizes=[2], modes=[mode])
    captured = capture(source)
    model = cut_model(captured, configuration(name, mode), 2, "chains")
    add_models(tmp_path / "suite", [model], 2, "chains", "2.13.0")
    check_nothing_is_told(tmp_path / "suite", captured, [name, "resnet", "nn.module"])


def test_what_is_told_of_values_is_blurred_and_alike_where_bricks_read_the_same(tmp_path: Path) -> None:
    told = [each.sample for brick in hand().bricks for each in brick.inputs if "quantiles" in each.sample]
    held = load_suite(add_models(tmp_path / "suite", [hand()], 2, "chains", "2.13.0").suite.path)
    shown = [each.sample for name in held.bricks for each in held.brick(name).inputs if "quantiles" in each.sample]
    before, after = ({json.dumps(sample["quantiles"]) for sample in samples} for samples in (told, shown))
    assert len(told) == len(shown) > len(after)
    assert len(before) == len(after)
    assert not before & after


def test_the_search_finds_a_name_a_weight_and_an_order(tmp_path: Path) -> None:
    captured = branches(module=MODULE)
    weight = next(value for value, kind in captured.leaves.items() if kind == "weight")
    leaks = [MODEL, MODULE.upper(), repr(captured.tensors[weight].reshape(-1).tolist()[0])]
    order = [piece.brick for piece in hand().composition.pieces[:2]]
    for number, leak in enumerate([*leaks, json.dumps(order), canonical(order), json.dumps(order, indent=1)]):
        place = tmp_path / str(number)
        add_models(place, [hand()], 2, "chains", "2.13.0")
        with (place / "suite.json").open("a") as file:
            file.write(leak)
        with pytest.raises(AssertionError):
            check_nothing_is_told(place, captured, [MODEL, MODULE])


def test_the_report_counts_what_is_there(suite: Path) -> None:
    report = audit(suite)
    assert report.findings == []
    assert (report.modes["infer"], set(report.modes), set(report.precisions)) == (5, {"infer", "train"}, {"fp32"})
    assert report.batch_sizes == {2: len(report.suite.bricks)}
    assert report.layer_types["batch_norm"] == 2
    assert report.lengths == {2: 3 + 3, 1: 2 + 2 + 1 + 2}
    assert report.optimizers == {"SGD": 2}
    assert "not revealed: which bricks form a model" in report.reveals[-1]


def test_exact_integers_and_numbers_of_the_code_are_revealed(tmp_path: Path) -> None:
    indices = an_input(4, dtype="int64", sample={"whole": "eJxjZIAAJijNDKVZoDQrlGYDAADkAAs="})
    reads = a_brick([an_input()], [{**a_layer("_local_scalar_dense.default", [{"value": 0}]), "outputs": [None]}], [])
    bricks = [a_brick([indices, indices], [a_layer("add.Tensor", [{"value": 0}, {"value": 1}], 2)], [2]), reads]
    lines = audit(a_suite(tmp_path / "suite", *bricks).path).reveals
    assert "exact integers of 2 inputs, such as word indices" in lines
    assert any(line.startswith("numbers that models' code reads from tensors, in 1 bricks") for line in lines)
    assert not any("optimizers" in line for line in lines)


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "bricks/more.json", "suite.private/model.json"])
def test_a_file_that_is_no_part_of_a_suite_is_found(suite: Path, name: str) -> None:
    (suite / name).parent.mkdir(exist_ok=True)
    (suite / name).write_text("{}")
    assert f"{name} is not part of a suite" in audit(suite).findings


def test_a_damaged_suite_is_not_audited(suite: Path) -> None:
    next((suite / "bricks").iterdir()).write_text("{}")
    with pytest.raises(UserError, match="does not match the suite's index"):
        audit(suite)


def test_decoys_are_new_bricks_and_leave_no_mark(tmp_path: Path) -> None:
    asked, other = hand(), hand("other", stride=2, padding=0)
    known = {brick.id for brick in asked.bricks}
    (decoys,) = drawn_decoys([other], known, 2)
    assert len(decoys.bricks) == 2
    assert not known.intersection(brick.id for brick in decoys.bricks)
    added = add_models(tmp_path / "suite", [asked], 2, "chains", "2.13.0", [decoys])
    assert set(added.suite.bricks) == known | {brick.id for brick in decoys.bricks}
    assert [each.model for each in load_compositions(added.suite.private)] == [MODEL]
    # Written as an own model or as a decoy, a suite's bytes are the same.
    at_once = add_models(tmp_path / "other", [asked, decoys], 2, "chains", "2.13.0")
    assert public_bytes(at_once.suite.path) == public_bytes(added.suite.path)


def test_no_model_is_a_decoy_as_a_whole_and_too_few_bricks_are_no_error() -> None:
    other = hand("other", stride=2, padding=0)
    (decoys,) = drawn_decoys(iter([other]), set(), 100)
    assert 0 < len(decoys.bricks) < len(other.bricks)
    assert drawn_decoys([], set(), 3) == []


def test_models_are_taken_only_until_there_are_enough() -> None:
    models = iter([hand("a", stride=2), hand("b", eps=0.1), hand("c", padding=0)])
    found = drawn_decoys(models, set(), 4)
    assert [len(each.bricks) for each in found] == [3, 1]
    assert next(models).composition.model == "c"
