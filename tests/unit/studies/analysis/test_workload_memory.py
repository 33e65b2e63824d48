"""Memory of several workloads: peaks of both modes, the study's two groups, and one moment for all sizes."""

from pathlib import Path

import pytest
from support.memory_records import NAMES, SIZES, composition, predicted_parts, write_memory
from support.records import write_record

from charact.record.reader import load_run
from charact.studies.analysis.workload_memory import (
    NO_GROUP,
    RESULT,
    WEIGHT,
    composition_in_loss,
    peaks_by_size,
    weights_and_results,
)


def test_peaks_of_both_modes_are_next_to_each_other(tmp_path: Path) -> None:
    runs = [load_run(write_memory(tmp_path / kind, kinds=(kind,))) for kind in ("sequence", "image")]
    rows = peaks_by_size(runs)
    assert list(rows["workload"].unique()) == [NAMES["sequence"], NAMES["image"]]
    predicted = rows[rows["method"] == "predicted"].set_index(["position", "input_size"])
    for kind, position in (("image", "pixel"), ("sequence", "token")):
        assert [size for at, size in predicted.index if at == position] == list(SIZES[kind])
        for size in SIZES[kind]:
            train, infer = (sum(predicted_parts(kind, mode, size).values()) for mode in ("train", "infer"))
            row = predicted.loc[(position, size), ["train_bytes", "infer_bytes", "ratio"]]
            assert row.tolist() == pytest.approx([train, infer, train / infer])


def test_a_mode_that_was_not_run_is_null(tmp_path: Path) -> None:
    rows = peaks_by_size([load_run(write_record(tmp_path, modes=("train",)))])
    assert rows["train_bytes"].notna().all()
    assert rows[["infer_bytes", "ratio"]].isna().all(axis=None)


def test_the_moment_of_all_sizes_is_the_loss(tmp_path: Path) -> None:
    rows = composition_in_loss([load_run(write_memory(tmp_path))])
    measured, predicted = (rows[rows["method"] == method] for method in ("measured", "predicted"))
    assert set(predicted["input_size"]) == {*SIZES["image"], *SIZES["sequence"]} - set(measured["input_size"])
    assert set(measured["input_size"]) == {10, 40, 80, 120, 64, 128, 192, 256}
    for kind, size in (("image", 128), ("sequence", 40)):
        held = composition(kind, "train", size) | dict.fromkeys(["temporary", "gradients", "activations"], 0.0)
        of_size = measured[measured["input_size"] == size].set_index("category")
        assert of_size["bytes"].to_dict() == pytest.approx({name: value for name, value in held.items() if value})
        assert of_size["share_frac"].sum() == pytest.approx(1)


def test_gradients_and_optimizer_state_count_as_weight(tmp_path: Path) -> None:
    run = load_run(write_record(tmp_path, sizes=(32,), modes=("train",)))
    rows = weights_and_results([run]).set_index("category")
    expected = {"weights": WEIGHT, "gradients": WEIGHT, "optimizer_state": WEIGHT, "activations": RESULT,
                "temporary": RESULT, "input": NO_GROUP}
    assert {name: group for name, group in rows["group"].items() if name in expected} == {
        name: group for name, group in expected.items() if name in rows.index}
    assert {WEIGHT, RESULT} <= set(rows["group"])
    held = run.memory.query("kind == 'peak' and method == 'measured'")["bytes"].sum()
    assert rows["bytes"].sum() == pytest.approx(held)
    assert list(dict.fromkeys(rows["group"])) == [group for group in (WEIGHT, RESULT, NO_GROUP)
                                                  if group in set(rows["group"])]
