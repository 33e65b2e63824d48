"""Tables of suites' runs and of constructed models: known sums, shares and repeats."""

from pathlib import Path

import pytest
from support import brick_records as made
from support.brick_records import Models

from charact.analysis.profile.case_summary import case_summary
from charact.bricks.analysis.tables import (
    STARTS,
    brick_summary,
    brick_types,
    kind_of_work,
    layer_reuse,
    model_reuse,
    model_summary,
    record_pieces,
    suite_summary,
    suite_times,
    time_by_layers,
    time_saved,
)
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter


def test_bricks_have_their_times_shares_and_rates(tmp_path: Path) -> None:
    rows = brick_summary(made.suite_run(tmp_path)).set_index("brick")
    assert rows.index.tolist() == ["00aa", "33dd", "11bb", "22cc"]
    first = rows.loc["00aa"]
    assert first[["time_s", "low_s", "high_s", "share_frac", "flop_per_s"]].tolist() == pytest.approx(
        [0.004, 0.98 * 0.004, 1.02 * 0.004, 0.4, made.FLOP / 0.004])
    assert first["operator_type"] == "convolution"
    assert rows["share_frac"].sum() == pytest.approx(1)


def test_phases_of_a_brick_are_summed_round_by_round(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "s", {})
    forward = made.time_rows("00aa", 1.0, rounds=[1.0, 2.0, 3.0])
    backward = made.time_rows("00aa", 1.0, "backward", rounds=[30.0, 20.0, 10.0])
    bricks = [made.brick_row("00aa", ["relu"])]
    writer.add_case(typed_entry(made.suite_entry()), {"bricks": bricks, "brick_times": forward + backward})
    rows = brick_summary(load_run(writer.close("complete")))
    assert rows["time_s"].tolist() == [22.0]  # of 31, 22 and 13; medians of the phases would sum to 22, too
    assert rows["low_s"].isna().all()


def test_the_device_s_clock_counts_where_there_is_one(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "s", {})
    times = [{**row, "device_s": 5.0} for row in made.time_rows("00aa", 1.0)]
    writer.add_case(typed_entry(made.suite_entry()),
                    {"bricks": [made.brick_row("00aa", ["relu"])], "brick_times": times})
    assert brick_summary(load_run(writer.close("complete")))["time_s"].tolist() == [5.0]


def test_rounds_count_where_they_have_all_bricks(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "s", {})
    times = [*made.time_rows("00aa", 1.0, rounds=[1, 2]), *made.time_rows("11bb", 10.0, rounds=[1])]
    rows = [made.brick_row(brick, ["relu"]) for brick in ("00aa", "11bb")]
    writer.add_case(typed_entry(made.suite_entry()), {"bricks": rows, "brick_times": times})
    assert suite_times(load_run(writer.close("complete")))["suite_s"].tolist() == [11.0]


def test_a_suite_is_summed_up_with_what_failed(tmp_path: Path) -> None:
    failed = made.brick_row("99ff", ["gather"], status="oom", reason="too large")
    run = made.suite_run(tmp_path, failed=[failed])
    whole = suite_summary(run).iloc[0]
    assert whole[["num_bricks", "num_failed", "suite_s", "g"]].tolist() == pytest.approx([5, 1, 0.01, 2])
    assert brick_types(run)[["layers", "num_bricks"]].to_numpy().tolist() == [
        ["conv2d + batch_norm", 2], ["linear", 1], ["relu", 1]]
    assert brick_summary(run)["time_reason"].tolist()[-1] == "too large"
    assert case_summary(run)["kind"].tolist() == ["bricks"]


def test_of_a_run_that_goes_on_what_has_times_has_not_failed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "s", {})
    rows = [made.brick_row(brick, ["relu"], status="running") for brick in ("00aa", "11bb")]
    writer.add_case(typed_entry(made.suite_entry()), {"bricks": rows, "brick_times": made.time_rows("00aa", 1.0)})
    run = load_run(writer.close("complete"))
    assert suite_summary(run)["num_failed"].tolist() == [1]
    told = brick_summary(run).set_index("brick")["time_reason"]
    assert told["00aa"] is None
    assert told["11bb"] == "not timed yet"


def test_where_all_times_are_predicted_no_time_is_saved(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    predicted = [row | {"method": "predicted"} for row in made.piece_rows(["00aa", "11bb"])]
    writer.add_case(typed_entry(made.model_entry("a")),
                    {"pieces": predicted, "constructions": made.latency_rows(0.010)})
    assert time_saved(load_run(writer.close("complete"))).empty


@pytest.mark.parametrize(("types", "kind", "work"), [
    ('["relu", "conv2d"]', "sequence", "convolution"), ('["add", "relu"]', "sequence", "elementwise"),
    ('["update"]', "update", "optimizer"), ('["add"]', "gradient_sum", "autograd"),
    ('["nonsense"]', "sequence", "other"), ("[]", "sequence", "other"), (None, "sequence", None),
])  # fmt: skip
def test_a_row_of_layers_is_named_after_its_heaviest(types: str | None, kind: str, work: str | None) -> None:
    assert kind_of_work(types, kind) == work


def test_the_corrected_sum_speaks_for_a_model(tmp_path: Path) -> None:
    record = Models(tmp_path).add("a", ["00aa", "11bb"], corrected=1.1, measured=1.0).add("b", ["22cc"])
    rows = model_summary(record.fail("c", "no brick").run()).set_index("workload")
    assert rows["strategy"].tolist()[:2] == ["corrected", "sequential"]
    assert rows["latency_s"].tolist()[:2] == pytest.approx([0.0066, 0.001])
    assert rows.loc["a", ["plain_s", "normalized"]].tolist() == pytest.approx([0.006, 1.1])
    assert rows.loc["c", ["latency_s", "strategy"]].isna().all()
    assert rows["reason"].fillna("").tolist() == ["", "", "no brick"]
    assert rows["status"].tolist() == ["ok", "ok", "error"]


def test_pieces_are_counted_by_what_differs(tmp_path: Path) -> None:
    run = made.three_models(tmp_path)
    assert model_reuse(record_pieces(run))["unique_frac"].tolist() == pytest.approx([3 / 4, 1, 1, 5 / 8])
    assert model_reuse(record_pieces(run))["case"].isna().tolist() == [False, False, False, True]
    convolutions = layer_reuse(record_pieces(run)).iloc[0]
    assert convolutions[["num_pieces", "num_bricks", "num_models", "num_shared"]].tolist() == [4, 2, 3, 1]


def test_updates_and_sums_of_gradients_are_no_pieces(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    update = {**made.piece_rows(["22cc"])[0], "piece": None, "phase": "update", "time_s": 0.003, "num_uses_here": 3}
    tables = {"pieces": [*made.piece_rows(["00aa"]), update], "constructions": made.latency_rows(0.007)}
    writer.add_case(typed_entry(made.model_entry("a")), tables)
    run = load_run(writer.close("complete"))
    assert model_reuse(record_pieces(run))["num_pieces"].tolist() == [1]
    parts = time_by_layers(run)
    assert parts["operator_type"].tolist() == ["convolution", "optimizer"]
    assert parts["share_frac"].tolist() == pytest.approx([4 / 7, 3 / 7])
    assert time_saved(run)["speedup"].tolist() == pytest.approx([0.007 / 0.005])  # of three updates one is timed


def test_what_a_training_starts_once_is_part_of_its_sum(tmp_path: Path) -> None:
    """3 ms of backward passes from 2 bricks, and 1 ms of starts; each of the suite's passes has its start of 0.5 ms."""
    writer = RunWriter(tmp_path, "r", {})
    forward = made.piece_rows(["00aa", "11bb"])
    backward = [row | {"phase": "backward", "time_s": 0.0015} for row in forward]
    entry = made.model_entry("a", mode="train")
    entry["passes"]["construct"]["backward_start_s"] = 0.0005
    writer.add_case(typed_entry(entry), {"pieces": [*forward, *backward], "constructions": made.latency_rows(0.010)})
    run = load_run(writer.close("complete"))
    parts = time_by_layers(run).set_index("layers")
    assert parts["time_s"].sum() == pytest.approx(0.010)
    assert parts.loc[STARTS, ["operator_type", "time_s", "share_frac"]].tolist() == ["other", pytest.approx(0.001),
                                                                                     pytest.approx(0.1)]
    saved = time_saved(run).iloc[0]
    assert saved[["models_s", "suite_s"]].tolist() == pytest.approx([0.010, 0.009 + 2 * 0.0005])


def test_models_that_lack_a_time_are_left_out_of_sums(tmp_path: Path) -> None:
    run = made.three_models(tmp_path)
    assert set(time_by_layers(run)["case"]) == {f"{name}-224-b1-infer-fp32-cpu" for name in ("resnet18", "vgg11")}
    saved = time_saved(run).iloc[0]
    assert saved[["num_models", "models_s", "suite_s", "speedup"]].tolist() == pytest.approx([2, 0.015, 0.01, 1.5])
    assert saved["speedup_with_set_up"] == pytest.approx(7 * 0.015 / (7 * 0.01 + 0.4))


def test_trainings_and_inferences_are_each_set_up(tmp_path: Path) -> None:
    """Bricks of 4 and 2 ms, timed in 7 rounds after 0.4 s and in 20 rounds after 0.1 s."""
    record = made.Models(tmp_path)
    record.add("a", ["00aa", "00aa"])
    record.add("b", ["11bb", "11bb", "11bb"])
    for entry, case, rounds, set_up_s in zip(record.writer.manifest["cases"], ("one", "two"), (7, 20), (0.4, 0.1),
                                             strict=True):  # fmt: skip
        entry["passes"]["construct"] |= {"brick_case": case, "num_repeats": rounds, "set_up_s": set_up_s}
    saved = time_saved(record.run()).iloc[0]
    assert saved["speedup"] == pytest.approx(0.014 / 0.006)
    wanted = (7 * 0.008 + 20 * 0.006) / (7 * 0.004 + 20 * 0.002 + 0.5)
    assert saved["speedup_with_set_up"] == pytest.approx(wanted)
