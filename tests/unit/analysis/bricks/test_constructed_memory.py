import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.brick_runs import CASE, brick_run, composition, infer_run

from charact.analysis.bricks.memory import constructed_memory
from charact.analysis.bricks.times import BrickTimes
from charact.bricks.suite.composition import Composition


def by_category(rows: list[dict[str, Any]]) -> dict[str, float]:
    assert {(row["kind"], row["method"]) for row in rows} <= {("peak", "constructed")}
    return {row["category"]: row["bytes"] for row in rows}


def held(weights: float, outputs: float, peak: float, saved: float | None = None) -> dict[str, float | None]:
    return {"weights_bytes": weights, "outputs_bytes": outputs, "peak_bytes": peak, "saved_bytes": saved}


def test_what_waits_for_another_branch_is_held_at_the_peak(tmp_path: Path) -> None:
    """a gives 1,000 B, which b and d read; c needs 5,000 B for itself while a's and b's results wait."""
    run = infer_run(tmp_path, dict.fromkeys("abcd", 0.01), rows={
        "a": held(0, 1000, 1200), "b": held(0, 300, 300), "c": held(400, 200, 5200), "d": held(0, 50, 60)})
    model = composition("abcd", [[], [0], [1], [2, 0]], weights_bytes=400)
    rows, reason = constructed_memory(model, BrickTimes(run, CASE))
    assert reason is None
    assert by_category(rows) == {"weights": 400, "activations": 1000 + 300 + 200, "temporary": 5000}
    rows, _ = constructed_memory(composition("abcd", [[], [0], [1], [2]]), BrickTimes(run, CASE))
    assert by_category(rows)["activations"] == 300 + 200


def test_what_is_changed_in_place_waits_for_the_readers_of_the_change(tmp_path: Path) -> None:
    """b gives nothing of its own: a's result is what d reads."""
    run = infer_run(tmp_path, dict.fromkeys("abcd", 0.01), rows={
        "a": held(0, 1000, 1000), "b": held(0, 0, 0), "c": held(0, 10, 5000), "d": held(0, 10, 10)})
    rows, _ = constructed_memory(composition("abcd", [[], [0], [], [1, 2]]), BrickTimes(run, CASE))
    assert by_category(rows)["activations"] == 1000 + 10


def test_results_of_the_model_stay(tmp_path: Path) -> None:
    run = infer_run(tmp_path, dict.fromkeys("ab", 0.01), rows={"a": held(0, 100, 100), "b": held(0, 10, 500)})
    model = composition("ab", [[], []], outputs=((0, 0), (1, 0)))
    rows, _ = constructed_memory(model, BrickTimes(run, CASE))
    assert by_category(rows)["activations"] == 110


def saves(inputs: list[int], *outputs: tuple[float, int | None, bool]) -> str:
    """The column `held`: inputs that are saved; of outputs the bytes, whose memory it is, whether they are saved."""
    return json.dumps({"saved_inputs": inputs, "outputs": [
        {"bytes": num_bytes, "input": shared, "saved": saved, "gradient": True} for num_bytes, shared, saved in outputs
    ]})  # fmt: skip


def training(tmp_path: Path, rows: dict[str, dict[str, Any]], model: Composition) -> list[dict[str, Any]]:
    """Rows of a training whose bricks hold so much."""
    times = {brick: {"forward": 0.01, "backward": 0.02} for brick in rows}
    run = brick_run(tmp_path, times, mode="train", rows=rows)
    rows_found, reason = constructed_memory(model, BrickTimes(run, CASE.replace("infer", "train")))
    assert reason is None
    return rows_found


def test_a_training_holds_what_its_backward_pass_reads(tmp_path: Path) -> None:
    """The peak is at b's backward pass: it saves a's result and 500 B, and none of a's weights has a gradient."""
    times = {**{brick: {"forward": 0.01, "backward": 0.02} for brick in "ab"}, "step": {"update": 0.001}}
    run = brick_run(tmp_path, times, mode="train", rows={
        "a": {**held(300, 1000, 1100, 50), "held": saves([], (1000, None, False))},
        "b": {**held(100, 2000, 9000, 500), "held": saves([0], (2000, None, False))},
        "step": {"kind": "update", **held(200, 0, 200, 404), "outputs_bytes": None}})  # fmt: skip
    model = composition("ab", mode="train", weights_bytes=400, updates=(("step", 2),), input_bytes=70, outputs=())
    rows, reason = constructed_memory(model, BrickTimes(run, CASE.replace("infer", "train")))
    assert reason is None
    assert {row["phase"] for row in rows} == {"backward"}
    assert by_category(rows) == {
        "weights": 400, "activations": 50 + 1000 + 500, "temporary": 9000 - 2000 - 500, "gradients": 0,
        "optimizer_state": 808, "input": 70}  # fmt: skip


def test_what_one_piece_gives_and_the_next_one_saves_counts_once(tmp_path: Path) -> None:
    """a saves its result, as b does; what b gives is saved by nobody."""
    rows = training(tmp_path, {
        "a": {**held(0, 1000, 1000, 0), "held": saves([], (1000, None, True))},
        "b": {**held(0, 300, 2300, 0), "held": saves([0], (300, None, False))}}, composition("ab", mode="train"))
    assert by_category(rows)["activations"] == 1000 + 300  # a result of the model stays
    rows = training(tmp_path, {
        "a": {**held(0, 1000, 1000, 0), "held": saves([], (1000, None, False))},
        "b": {**held(0, 300, 2300, 0), "held": saves([], (300, None, False))}},
        composition("ab", mode="train", outputs=()))
    assert by_category(rows)["activations"] == 0


def test_what_is_saved_of_a_view_is_what_it_shows(tmp_path: Path) -> None:
    """b gives a's result otherwise, which c saves."""
    rows = training(tmp_path, {
        "a": {**held(0, 1000, 1000, 0), "held": saves([], (1000, None, False))},
        "b": {**held(0, 0, 0, 0), "held": saves([], (1000, 0, False))},
        "c": {**held(0, 10, 4000, 0), "held": saves([0], (10, None, False))}},
        composition("abc", mode="train", outputs=()))
    assert by_category(rows)["activations"] == 1000


def test_gradients_wait_for_those_of_another_branch(tmp_path: Path) -> None:
    """c reads a's result, too: its gradient is there while b's backward pass runs."""
    rows = {
        "a": {**held(0, 1000, 1000, 0), "held": saves([], (1000, None, False))},
        "b": {**held(0, 300, 9300, 0), "held": saves([], (300, None, False))},
        "c": {**held(0, 10, 20, 0), "held": saves([], (10, None, False))}}  # fmt: skip
    branched = training(tmp_path, rows, composition("abc", [[], [0], [1, 0]], mode="train", outputs=()))
    chained = training(tmp_path, rows, composition("abc", mode="train", outputs=()))
    assert (by_category(branched)["temporary"], by_category(chained)["temporary"]) == (9000 + 1000, 9000)


def test_with_large_weights_the_peak_is_at_the_end(tmp_path: Path) -> None:
    times = {"a": {"forward": 0.01, "backward": 0.02}, "step": {"update": 0.001}}
    run = brick_run(tmp_path, times, mode="train", rows={
        "a": {**held(1e6, 10, 20, 0), "held": saves([], (10, None, False))},
        "step": {"kind": "update", **held(1e6, 0, 5000, 0)}})  # fmt: skip
    model = composition("a", mode="train", weights_bytes=1_000_000, updates=(("step", 1),))
    rows, _ = constructed_memory(model, BrickTimes(run, CASE.replace("infer", "train")))
    assert {row["phase"] for row in rows} == {"update"}
    assert by_category(rows)["gradients"] == 1e6
    assert by_category(rows)["temporary"] == 5000


def test_modules_that_were_not_called_have_weights_too(tmp_path: Path) -> None:
    run = infer_run(tmp_path, {"a": 0.01})
    rows, _ = constructed_memory(composition("a", num_parameters=1000), BrickTimes(run, CASE))
    assert by_category(rows)["weights"] == 4000


def test_what_is_not_known_gives_no_number(tmp_path: Path) -> None:
    run = infer_run(tmp_path, dict.fromkeys("ab", 0.01), rows={"b": {"peak_bytes": None}})
    assert constructed_memory(composition("abx"), BrickTimes(run, CASE)) == (
        [], "the memory of 2 of 3 bricks was not measured")
    run = brick_run(tmp_path, {"step": {"update": 0.001}}, mode="train", rows={"step": {"kind": "update"}})
    model = composition("", mode="train", updates=(("step", 1),))
    assert constructed_memory(model, BrickTimes(run, CASE.replace("infer", "train"))) == (
        [], "the memory of 1 of 1 bricks was not measured")


def test_a_run_that_does_not_tell_what_is_saved_gives_no_number(tmp_path: Path) -> None:
    run = brick_run(tmp_path, {"a": {"forward": 0.01, "backward": 0.02}}, mode="train")
    assert constructed_memory(composition("a", mode="train"), BrickTimes(run, CASE.replace("infer", "train"))) == (
        [], "the run does not record the saved tensors of its bricks: run the suite again")


@pytest.mark.parametrize("changed", [
    {"inputs": [[], [(0, 1)]]}, {"inputs": [[], [(0, -1)]]}, {"inputs": [[], []]}, {"outputs": ((1, 5),)}])
def test_a_composition_that_was_changed_by_hand_gives_no_number(tmp_path: Path, changed: dict[str, Any]) -> None:
    run = brick_run(tmp_path, {brick: {"forward": 0.01, "backward": 0.02} for brick in "ab"}, mode="train", rows={
        "a": {**held(0, 100, 100, 0), "held": saves([], (100, None, False))},
        "b": {**held(0, 10, 10, 0), "held": saves([0], (10, None, False))}})
    kept = composition("ab", mode="train")
    pieces = tuple(replace(piece, inputs=tuple(inputs)) for piece, inputs in
                   zip(kept.pieces, changed.get("inputs", [piece.inputs for piece in kept.pieces]), strict=True))
    model = replace(kept, pieces=pieces, outputs=changed.get("outputs", kept.outputs))
    assert constructed_memory(model, BrickTimes(run, CASE.replace("infer", "train"))) == (
        [], "the composition does not fit its bricks: generate the suite again")
