"""The gate fails on what is both larger than asked and no noise, and on nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.compared import CASE, scattered, side
from support.records import write_training

from charact.analysis.common.significance import ONE_RUN_EACH
from charact.analysis.compare.gate import OUTCOMES, has_failed, judge
from charact.analysis.compare.thresholds import parse
from charact.analysis.efficiency import flop_utilization
from charact.core.errors import UserError
from charact.machine.datasheets import Datasheet
from charact.record.in_progress import write_manifest
from charact.record.reader import Run, load_run
from charact.views.export.markdown import summary
from charact.views.tables import format as fmt
from charact.views.tables.gate_tables import gate_table, sentence

SLOWER = {"slowness": {"backward": 1.2}, "seed": 2}  # half of an iteration: 20 % more of it are 10 % of the whole
NOISY = {"noise_frac": 0.5, "num_iterations": 20}
FEW = {"num_iterations": 3}


@pytest.mark.parametrize(("base", "new", "expected"), [
    ({"seed": 1}, SLOWER, {"time > 1.05": "regression", "time > 1.2": "ok", "phase.backward > 1.1": "regression",
                           "phase.forward > 1.05": "ok", "throughput < 0.95": "regression"}),
    (SLOWER, {"seed": 1}, dict.fromkeys(["time > 1.05", "phase.backward > 1.1", "throughput < 0.95"], "ok")),
    ({"noise_frac": 0.3}, {"noise_frac": 0.3},
     dict.fromkeys(["time > 1", "phase.data > 1", "throughput < 1", "peak_memory > 1"], "ok")),
    ({"slowness": {"backward": 1.02}, "seed": 3, **NOISY}, {"slowness": {"backward": 1.1}, "seed": 5, **NOISY},
     {"time > 1.0": "not significant"}),
    ({"seed": 1, "noise_frac": 0.001}, {"slowness": {"backward": 1.06}, "noise_frac": 0.001},
     {"time > 1.05": "ok", "time > 1.01": "regression"}),  # a real difference, but smaller than asked
    ({}, {"activations": 100.0}, {"peak_memory > 1.3": "regression", "peak_memory > 1.4": "ok"}),  # 1 of 308 MB
    ({"activations": 100.0}, {}, {"peak_memory > 1.0001": "ok"}),
    (FEW, {"slowness": {"backward": 2.0}, **FEW}, {"time > 1.05": "n/a", "time > 9": "ok"}),
])
def test_outcomes(tmp_path: Path, base: dict[str, Any], new: dict[str, Any], expected: dict[str, str]) -> None:
    judged = judge([parse(rule) for rule in expected],
                   [side("base", scattered(tmp_path, **base)), side("new", scattered(tmp_path, **new))])
    assert judged["outcome"].tolist() == list(expected.values())
    assert has_failed(judged) == ("regression" in expected.values())
    assert (judged["ratio"] == judged["value"] / judged["base"]).all()
    if base is FEW:
        assert judged["reason"].tolist()[0] == "fewer than 6 iterations"


def test_columns(tmp_path: Path) -> None:
    sides = [side("base", scattered(tmp_path, seed=1)), side("new", scattered(tmp_path, **SLOWER))]
    row = judge([parse("phase.backward > +10%")], sides).iloc[0]
    assert row[["case", "side", "rule", "metric", "limit", "outcome"]].tolist() == [
        CASE, "new", "phase.backward > 1.1", "phase.backward", 1.1, "regression"]
    assert row["base"] == pytest.approx(0.05, rel=0.02)
    assert 1.1 < row["low"] < row["ratio"] < row["high"] < 1.3
    assert row["p_value"] < 0.01
    assert row["reason"] == ONE_RUN_EACH


def test_what_was_not_measured_has_its_reason(tmp_path: Path) -> None:
    run = scattered(tmp_path)
    judged = judge([parse("accuracy < 0.99"), parse("phase.communication > 1.1"), parse("time > 1.05")],
                   [side("base", run), side("new", run)])
    assert judged["outcome"].tolist() == ["n/a", "n/a", "ok"]
    assert judged["reason"].tolist()[:2] == ["not measured", "neither group of runs has this phase"]
    assert not has_failed(judged)
    with pytest.raises(UserError, match=r"^no threshold could be checked .*not measured.*this phase.*all groups of"):
        has_failed(judged.iloc[:2])
    with pytest.raises(UserError, match=r"no case in common, so measure the same cases in each$"):
        has_failed(judge([parse("time > 1.05")], [side("base", run)]))


def test_totals_of_trainings_are_judged(tmp_path: Path) -> None:
    run = load_run(write_training(tmp_path, diverged=False))
    judged = judge([parse("total_time > 1.05"), parse("accuracy < 0.99")], [side("base", run), side("new", run)])
    assert judged["outcome"].tolist() == ["ok"] * 4
    assert judged["case"].nunique() == 2


@pytest.mark.slow
def test_repeats_and_several_groups(tmp_path: Path) -> None:
    base = side("base", *(scattered(tmp_path, seed=seed) for seed in range(3)))
    slow = side("slow", *(scattered(tmp_path, {"forward": 1.5}, seed=seed) for seed in range(3, 6)))
    same = side("same", *(scattered(tmp_path, seed=seed) for seed in range(6, 9)))
    judged = judge([parse("time > 1.05")], [base, same, slow])
    assert dict(zip(judged["side"], judged["outcome"], strict=True)) == {"same": "ok", "slow": "regression"}
    assert set(judged["outcome"]) <= set(OUTCOMES)


def utilized(tmp_path: Path) -> Run:
    """A run whose MFU is 0.5 on a device with a peak of 3.9 TFLOP/s: 195 GFLOP in 0.1 s."""
    path = scattered(tmp_path, noise_frac=0.001).path
    described = json.loads((path / "run.json").read_text())
    described["cases"][0]["passes"]["flop"]["recomputed_flop"] = 0.0
    write_manifest(path, described)
    return load_run(path)


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flop_utilization, "datasheet", lambda name: Datasheet({"fp32": 3.9e12}, 1e9, "by hand"))


@pytest.mark.usefixtures("peak")
def test_a_limit_of_a_value_needs_no_baseline(tmp_path: Path) -> None:
    rules = {"mfu < 0.4": "ok", "mfu < 0.6": "regression", "mfu > 0.4": "regression", "hfu < 0.4": "n/a"}
    alone = [side("new", utilized(tmp_path))]
    judged = judge([parse(rule) for rule in rules], alone)
    assert dict(zip(judged["rule"], judged["outcome"], strict=True)) == rules
    row = judged.iloc[0]
    assert row["value"] == pytest.approx(0.5, rel=0.02)
    assert row["value_low"] < row["value"] < row["value_high"]
    assert judged[["base", "ratio", "low", "high"]].isna().all(axis=None)
    assert judged["reason"].tolist()[-1] == "nothing is recomputed"
    assert has_failed(judged)
    in_pair = judge([parse("mfu < 0.6")], [side("base", utilized(tmp_path)), *alone])
    assert in_pair[["side", "outcome"]].to_numpy().tolist() == [["new", "regression"]]
    middle = judge([parse(f"mfu < {float(row['value']) + 1e-9!r}")], alone)  # a hair more than the value
    assert middle["outcome"].tolist() == ["not significant"]


@pytest.mark.usefixtures("peak")
def test_views_of_a_limit_of_a_value(tmp_path: Path) -> None:
    sides = [side("new", utilized(tmp_path))]
    judged = judge([parse("mfu < 0.6")], sides)
    table = gate_table(judged, sides)
    assert [column.title for column in table.columns][:4] == ["Outcome", "Threshold", "Case", "new"]
    assert re.search(r"regression: \S+ %, 95 % interval \S+ % to \S+ % \(threshold: mfu < 0.6\)",
                     sentence(next(fmt.rows(judged))))
    assert summary(judged, sides).startswith("# charact: 1 regression (new)")


def test_a_value_that_is_missing_has_its_reason(tmp_path: Path) -> None:
    judged = judge([parse("mfu < 0.4")], [side("new", utilized(tmp_path))])
    assert judged["outcome"].tolist() == ["n/a"]
    assert judged["reason"].tolist()[0].startswith("no datasheet peak of AMD EPYC is known")
    with pytest.raises(UserError, match="no datasheet peak"):
        has_failed(judged)
