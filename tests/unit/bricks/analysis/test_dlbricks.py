"""Tables of the DLBricks study, against computations of their own."""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from support.brick_records import Models, three_models
from support.brick_runs import CASE, composition, infer_run
from support.records import manifest

from charact.bricks.analysis.construction import BrickTimes, construct, constructed_case
from charact.bricks.analysis.dlbricks import path_latencies, repeated_layers
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
