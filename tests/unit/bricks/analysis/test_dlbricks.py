"""Tables of the DLBricks study, against computations of their own."""

import math
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from support.brick_records import Models, three_models
from support.brick_runs import CASE, composition, infer_run
from support.records import manifest

from charact.bricks.analysis.construction import BrickTimes, construct, constructed_case
from charact.bricks.analysis.dlbricks import (
    constructions_by_g,
    latencies_by_machine,
    normalized_by_g,
    path_latencies,
    repeated_layers,
    speedup_slope,
)
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter

TIMES_S = {"a": 0.010, "b": 0.004, "c": 0.003, "d": 0.002}


def branched(out: Path, edges: list[list[int]], bricks: str, measured_s: float) -> Run:
    """A record of one model with these edges between its segments."""
    times = BrickTimes(infer_run(out, TIMES_S), CASE)
    entry, tables = constructed_case(construct(composition(bricks, edges), times, "not learned"), "not learned")
    writer = RunWriter(out, "construct", manifest("bricks", "construct"))
    rows = [{"iteration": number, "phase": "forward", "part": None, "host_s": measured_s, "device_s": None}
            for number in range(3)]
    writer.add_case(entry, {**tables, "iterations": rows})
    writer.close("complete")
    return load_run(writer.publish())


@pytest.mark.parametrize(("edges", "bricks"), [
    ([[], [0], [0], [1, 2]], "abca"),
    ([[], [0], [1], [0], [3], [2, 4], [0, 5]], "abdcbda"),
    ([[], [0], [1]], "abc"),
])
def test_a_path_is_the_longest_of_all_paths(tmp_path: Path, edges: list[list[int]], bricks: str) -> None:
    @cache
    def end_s(number: int) -> float:
        return TIMES_S[bricks[number]] + max((end_s(before) for before in edges[number]), default=0.0)

    (row,) = path_latencies(branched(tmp_path, edges, bricks, 0.020)).to_dict("records")
    sum_s, path_s = sum(map(TIMES_S.__getitem__, bricks)), max(map(end_s, range(len(edges))))
    assert (row["sum_s"], row["path_s"], row["measured_s"]) == pytest.approx((sum_s, path_s, 0.020))
    assert (row["sum_ratio"], row["path_ratio"]) == pytest.approx((sum_s / 0.020, path_s / 0.020))
    assert row["reason"] is None


def test_a_missing_ratio_has_its_reason(tmp_path: Path) -> None:
    rows = path_latencies(three_models(tmp_path)).set_index("case")["reason"]
    assert rows.tolist() == [None, None, "the run lacks 1 of 2 segments (brick 99ff)"]
    unmeasured = path_latencies(Models(tmp_path).add("vgg11", ["11bb"]).run()).iloc[0]
    assert unmeasured[["sum_s", "path_s"]].tolist() == pytest.approx([0.002, 0.0018])
    assert unmeasured["reason"] == "not measured: --verify measures it"


def test_layers_are_counted_by_type_and_model(tmp_path: Path) -> None:
    record = Models(tmp_path).add("one", ["11bb", "22cc", "11bb"], g=1).add("two", ["22cc"], g=1)
    rows = repeated_layers(record.run())
    types, models = rows.dropna(subset=["operator_type"]), rows[rows["operator_type"].isna()]
    numbers = ["num_pieces", "num_bricks", "unique_frac"]
    assert dict(zip(types["operator_type"], types[numbers].to_numpy().tolist(), strict=True)) == {
        "GEMM": [2, 1, 0.5], "activation": [2, 1, 0.5]}
    assert models[numbers].to_numpy().tolist() == [[3, 2, 2 / 3], [1, 1, 1.0], [4, 2, 0.5]]
    assert models["case"].str.split("-").str[0].tolist()[:2] == ["one", "two"]
    assert pd.isna(models["case"].iloc[2])
    assert repeated_layers(three_models(tmp_path)).empty  # its bricks have two layers


def on(run: Run, hostname: str) -> Run:
    """The record as if it were of another machine."""
    run.manifest["machine"]["hostname"] = hostname
    return run


def test_records_have_a_row_for_each_machine_and_g(tmp_path: Path) -> None:
    """The plain sum of resnet18 is that which was measured, that of vgg11 is 1.25 times shorter."""
    runs = [on(three_models(tmp_path, g=4), "a"), on(three_models(tmp_path, g=1), "b"),
            on(three_models(tmp_path, g=1), "a"), on(three_models(tmp_path, g=1), "a")]
    rows = constructions_by_g(runs)
    assert rows[["run", "g"]].to_numpy().tolist() == [[2, 1], [0, 4], [1, 1]]
    assert rows["machine"].str.split().str[-1].tolist() == ["a", "a", "b"]
    assert rows["num_models"].tolist() == [3, 3, 3]
    mean, error_frac = math.exp(math.log(1 / 1.25) / 2), (1 - 1 / 1.25) / 2
    assert rows["geometric_mean"].tolist() == pytest.approx([mean] * 3)
    assert rows["mean_abs_error_frac"].tolist() == pytest.approx([error_frac] * 3)
    # 00aa, 22cc, 00aa, 11bb; 33dd, 22cc; 00aa, 99ff: 8 segments of 5 bricks.
    assert rows["unique_frac"].tolist() == [pytest.approx(5 / 8)] * 3
    # 4 + 1 + 4 + 2 and 3 + 1 ms against each of 4, 1, 2 and 3 ms once.
    assert rows["speedup"].tolist() == [pytest.approx(15 / 10)] * 3


def test_the_slope_of_the_speedup_is_that_of_the_first_machine() -> None:
    rows = pd.DataFrame({"machine": ["a", "a", "a", "b"], "g": [1, 2, 4, 8], "speedup": [4.0, 3.5, 2.5, 9.0]})
    assert speedup_slope(rows) == pytest.approx(-0.5)
    assert speedup_slope(rows.head(1)) is None
    assert speedup_slope(rows.head(0)) is None


def test_normalized_latencies_end_with_their_geometric_mean(tmp_path: Path) -> None:
    rows = normalized_by_g([three_models(tmp_path, g=2), three_models(tmp_path, g=1)])
    assert rows["g"].tolist() == [1] * 4 + [2] * 4
    of_one = rows[rows["g"] == 1]
    assert of_one["case"].str.split("-").str[0].tolist()[:3] == ["resnet18", "vgg11", "hopeless"]
    assert of_one["case"].isna().tolist() == [False, False, False, True]
    assert of_one["normalized"].tolist()[:2] == pytest.approx([1.0, 0.8])
    assert of_one["normalized"].iloc[3] == pytest.approx(math.exp((math.log(1.0) + math.log(0.8)) / 2))
    assert of_one["reason"].tolist() == [None, None, "the run lacks 1 of 2 segments (brick 99ff)", None]


def test_a_model_that_did_not_run_on_a_machine_has_its_constructed_latency(tmp_path: Path) -> None:
    there = Models(tmp_path).add("vgg11", ["33dd", "22cc"], g=1).fail("hopeless", "lacks a brick").run()
    runs = [on(three_models(tmp_path, g=2), "a"), on(three_models(tmp_path, g=1), "a"), on(there, "b")]
    rows = latencies_by_machine(runs)
    rows = rows.assign(machine=rows["machine"].str.split().str[-1]).set_index(["workload", "machine"])
    assert rows["source"].to_dict() == {
        ("resnet18", "a"): "measured", ("vgg11", "a"): "measured", ("vgg11", "b"): "constructed",
        ("hopeless", "a"): None, ("hopeless", "b"): None}
    known = rows["latency_s"].dropna().to_dict()
    assert known == pytest.approx({("resnet18", "a"): 0.011, ("vgg11", "a"): 0.005, ("vgg11", "b"): 0.004})
    assert rows["reason"].to_dict()["hopeless", "b"] == "lacks a brick"


def test_no_record_has_no_rows() -> None:
    for table in (constructions_by_g, latencies_by_machine, normalized_by_g):
        assert table([]).empty
