"""The gate fails on what is both larger than asked and no noise, and on nothing else."""

from pathlib import Path

import pytest
from support.compared import CASE, scattered, side
from support.records import write_training

from charact.analysis.common.significance import ONE_RUN_EACH
from charact.analysis.compare.gate import OUTCOMES, has_failed, judge
from charact.analysis.compare.thresholds import parse
from charact.core.errors import UserError
from charact.record.reader import Run, load_run


def outcomes(base: Run, new: Run, *rules: str) -> list[str]:
    return judge([parse(rule) for rule in rules], [side("base", base), side("new", new)])["outcome"].tolist()


def test_a_slower_phase_fails_the_rules_it_passes(tmp_path: Path) -> None:
    # Backward takes half of the iteration: 20 % more of it are 10 % of the whole.
    base, new = scattered(tmp_path, seed=1), scattered(tmp_path, {"backward": 1.2}, seed=2)
    rules = ["time > 1.05", "time > 1.2", "phase.backward > 1.1", "phase.forward > 1.05", "throughput < 0.95"]
    assert outcomes(base, new, *rules) == ["regression", "ok", "regression", "ok", "regression"]
    assert outcomes(new, base, *rules) == ["ok"] * 5


def test_what_it_tells(tmp_path: Path) -> None:
    sides = [side("base", scattered(tmp_path, seed=1)), side("new", scattered(tmp_path, {"backward": 1.2}, seed=2))]
    row = judge([parse("phase.backward > +10%")], sides).iloc[0]
    assert row[["case", "side", "rule", "metric", "limit", "outcome"]].tolist() == [
        CASE, "new", "phase.backward > 1.1", "phase.backward", 1.1, "regression"]
    assert row["base"] == pytest.approx(0.05, rel=0.02)
    assert row["ratio"] == pytest.approx(row["value"] / row["base"])
    assert 1.1 < row["low"] < row["ratio"] < row["high"] < 1.3
    assert row["p_value"] < 0.01
    assert row["reason"] == ONE_RUN_EACH


def test_a_large_difference_within_the_noise_does_not_fail(tmp_path: Path) -> None:
    base = scattered(tmp_path, {"backward": 1.02}, noise_frac=0.5, seed=3, num_iterations=20)
    new = scattered(tmp_path, {"backward": 1.1}, noise_frac=0.5, seed=5, num_iterations=20)
    judged = judge([parse("time > 1.0")], [side("base", base), side("new", new)])
    assert judged["ratio"].item() > 1
    assert judged["low"].item() < 1 < judged["high"].item()
    assert judged["outcome"].tolist() == ["not significant"]
    assert not has_failed(judged)


def test_a_run_against_itself_passes_every_rule(tmp_path: Path) -> None:
    run = scattered(tmp_path, noise_frac=0.3)
    rules = ["time > 1", "phase.data > 1", "throughput < 1", "peak_memory > 1"]
    assert outcomes(run, run, *rules) == ["ok"] * 4


def test_a_difference_that_is_real_but_smaller_than_asked_passes(tmp_path: Path) -> None:
    base, new = scattered(tmp_path, seed=1, noise_frac=0.001), scattered(tmp_path, {"backward": 1.06}, noise_frac=0.001)
    assert outcomes(base, new, "time > 1.05", "time > 1.01") == ["ok", "regression"]


def test_memory_is_counted_and_never_noise(tmp_path: Path) -> None:
    base, new = scattered(tmp_path), scattered(tmp_path, activations=100.0)
    # Activations are 1 of some 308 MB, and become 103.
    assert outcomes(base, new, "peak_memory > 1.3", "peak_memory > 1.4") == ["regression", "ok"]
    assert outcomes(new, base, "peak_memory > 1.0001") == ["ok"]


def test_too_few_iterations_to_tell_are_no_regression_but_said(tmp_path: Path) -> None:
    base, new = (scattered(tmp_path, {"backward": factor}, num_iterations=3) for factor in (1.0, 2.0))
    judged = judge([parse("time > 1.05"), parse("time > 9")], [side("base", base), side("new", new)])
    assert judged["outcome"].tolist() == ["n/a", "ok"]
    assert judged["reason"].tolist()[0] == "fewer than 6 iterations"
    assert not has_failed(judged)


def test_what_was_not_measured_is_said_with_its_reason(tmp_path: Path) -> None:
    run = scattered(tmp_path)
    sides = [side("base", run), side("new", run)]
    judged = judge([parse("accuracy < 0.99"), parse("phase.communication > 1.1"), parse("time > 1.05")], sides)
    assert judged["outcome"].tolist() == ["n/a", "n/a", "ok"]
    assert judged["reason"].tolist()[:2] == ["not measured", "neither group of runs has this phase"]
    assert not has_failed(judged)
    with pytest.raises(UserError, match=r"^no threshold could be checked .*not measured.*this phase.*both groups of"):
        has_failed(judged.iloc[:2])


def test_totals_of_trainings_are_judged(tmp_path: Path) -> None:
    run = load_run(write_training(tmp_path, diverged=False))
    judged = judge([parse("total_time > 1.05"), parse("accuracy < 0.99")], [side("base", run), side("new", run)])
    assert judged["outcome"].tolist() == ["ok"] * 4
    assert judged["case"].nunique() == 2


@pytest.mark.slow
def test_repeats_and_several_sides(tmp_path: Path) -> None:
    base = side("base", *(scattered(tmp_path, seed=seed) for seed in range(3)))
    slow = side("slow", *(scattered(tmp_path, {"forward": 1.5}, seed=seed) for seed in range(3, 6)))
    same = side("same", *(scattered(tmp_path, seed=seed) for seed in range(6, 9)))
    judged = judge([parse("time > 1.05")], [base, same, slow])
    assert dict(zip(judged["side"], judged["outcome"], strict=True)) == {"same": "ok", "slow": "regression"}
    assert has_failed(judged)
    assert set(judged["outcome"]) <= set(OUTCOMES)


def test_groups_without_a_common_case_get_a_remedy_of_their_own(tmp_path: Path) -> None:
    judged = judge([parse("time > 1.05")], [side("base", scattered(tmp_path))])
    with pytest.raises(UserError, match=r"no case in common, so measure the same cases in each$"):
        has_failed(judged)
