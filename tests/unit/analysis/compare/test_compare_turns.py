"""Decisions of comparisons by turns, against simulated truth."""

import math
from pathlib import Path

import numpy as np
import pytest
from support.compared import CASE, scattered
from support.pairs import slowed
from support.records import case_entry, case_tables, manifest, publish, run_of, watched_entry

from charact.analysis.common.significance import (
    MIN_TURNS,
    ONE_RUN_EACH,
    Judgement,
    Sample,
    judged,
    judged_by_turns,
    value_of_turns,
)
from charact.analysis.compare import Group, Turns, ratios
from charact.analysis.compare.turns import TurnTimes, decision, separation, turn_decisions
from charact.record.reader import Run, load_run

NUM_SIMULATED, MOST_TURNS = 300, 30


def of_runs(*values: float) -> Sample:
    """Return the sample of a group of runs."""
    return Sample(float(np.exp(np.log(values).mean())), values, of_runs=True)


def simulated(ratio: float, spread: float, seed: int) -> list[tuple[str, int]]:
    """Return decisions, and after how many turns, of programs whose runs have a standard deviation of a share."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(NUM_SIMULATED):
        base, new = np.exp(spread * generator.standard_normal((2, MOST_TURNS)))
        decided = (
            (decision(judged_by_turns(of_runs(*base[:number]), of_runs(*(ratio * new[:number])))), number)
            for number in range(MIN_TURNS, MOST_TURNS + 1)
        )
        found.append(next((each for each in decided if each[0] != "undecided"), ("undecided", MOST_TURNS)))
    return found


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.2])
def test_equal_programs_are_rarely_decided_as_different(spread: float) -> None:
    found = [what for what, _ in simulated(1, spread, seed=1)]
    assert found.count("faster") + found.count("slower") <= 0.05 * NUM_SIMULATED
    if spread < 0.01:
        assert found.count("same") >= 0.9 * NUM_SIMULATED


@pytest.mark.slow
def test_intervals_for_a_fixed_number_are_not_valid_so() -> None:
    generator = np.random.default_rng(1)
    alarms = 0
    for _ in range(NUM_SIMULATED):
        base, new = np.exp(0.2 * generator.standard_normal((2, MOST_TURNS)))
        alarms += any(judged(of_runs(*base[:number]), of_runs(*new[:number])).significant
                      for number in range(MIN_TURNS, MOST_TURNS + 1))
    assert alarms > 0.08 * NUM_SIMULATED


@pytest.mark.parametrize(("ratio", "spread", "most_turns"), [(3.0, 0.1, 5), (1 / 3, 0.1, 5), (1.1, 0.02, 12)])
def test_differences_are_decided_in_few_turns(ratio: float, spread: float, most_turns: int) -> None:
    expected = "slower" if ratio > 1 else "faster"
    reached = [what == expected and number <= most_turns for what, number in simulated(ratio, spread, seed=2)]
    assert sum(reached) >= 0.95 * NUM_SIMULATED


def test_a_drift_of_the_machine_cancels_within_the_turns() -> None:
    drift = 1.2 ** np.arange(6)
    found = judged_by_turns(of_runs(*drift), of_runs(*(1.1 * drift * [1, 1.01, 0.99, 1, 1.01, 0.99])))
    assert found.significant
    assert found.ratio == pytest.approx(1.1, rel=0.01)
    assert not judged(of_runs(*drift), of_runs(*(1.1 * drift))).significant


def test_a_few_disturbed_turns_do_not_hide_a_difference() -> None:
    generator = np.random.default_rng(3)
    base, new = np.exp(0.01 * generator.standard_normal((2, 12)))
    base[3] *= 3
    new[8] *= 2
    found = judged_by_turns(of_runs(*base), of_runs(*(1.1 * new)))
    assert found.significant
    assert found.ratio == pytest.approx(1.1, rel=0.02)
    assert value_of_turns(of_runs(*base)) == pytest.approx(1, rel=0.02)


def test_few_unpaired_and_equal_turns() -> None:
    assert judged_by_turns(Sample(1.0), Sample(2.0)).reason is None
    assert judged_by_turns(of_runs(1, 1), of_runs(2, 2)) == Judgement(2.0, reason="2 turns: an interval needs 4")
    assert judged_by_turns(of_runs(1, 1, 1, 1), of_runs(2, 2, 2, 2.1)).low is not None
    unpaired = of_runs(1, 1.1, 1.05), of_runs(2, 2.1)
    assert judged_by_turns(*unpaired) == judged(*unpaired)
    assert judged_by_turns(of_runs(2, 2, 2, 2), of_runs(2, 2, 2, 2))[:5] == (1, 1, 1, 1, False)
    assert judged_by_turns(of_runs(2, 2, 2, 2), of_runs(4, 4, 4, 4)).significant


@pytest.mark.parametrize(("low", "high", "significant", "expected"), [
    (0.98, 1.02, False, "same"), (0.96, 1.01, False, "undecided"), (1.01, 1.02, True, "slower"),
    (0.97, 1.03, False, "same"), (0.98, 1.04, False, "undecided"),
    (0.3, 0.4, True, "faster"), (None, None, False, "undecided"),
])
def test_decisions(low: float | None, high: float | None, significant: bool, expected: str) -> None:
    ratio = 1.0 if low is None or high is None else math.sqrt(low * high)
    assert decision(Judgement(ratio, low, high, 0.5, significant)) == expected


def test_turns_are_decided_case_by_case(tmp_path: Path) -> None:
    times = TurnTimes()
    for number in range(MIN_TURNS):
        assert not times.is_decided()
        base = scattered(tmp_path, seed=number)
        times.add([base], [scattered(tmp_path, {"backward": 2.0}, seed=100 + number)])
    assert times.is_decided()
    (judgement,) = times.judgements().values()
    assert decision(judgement) == "slower"
    assert list(times.judgements()) == [CASE]


@pytest.mark.parametrize(("infer_s", "decides"), [(0.001, True), (0.1, False)])
def test_a_watched_programs_case_of_little_time_need_not_be_decided(tmp_path: Path, infer_s: float, decides: bool
                                                                    ) -> None:
    def run(*times_s: float) -> Run:
        cases = []
        for mode, time_s in zip(("train", "infer"), times_s, strict=True):
            rows = [{"iteration": number, "phase": "forward", "part": None, "host_s": time_s, "device_s": None}
                    for number in range(20)]
            cases.append((watched_entry("train.py", case=f"train-{mode}", mode=mode), {"iterations": rows}))
        return run_of(tmp_path, *cases, **manifest("run", "train.py") | {"options": {"script": "train.py"}})

    times = TurnTimes()
    for number in range(MIN_TURNS):
        varied_s = infer_s * (1 + 0.5 * (number % 2))
        times.add([run(0.1 + 0.001 * number, varied_s)], [run(0.02 + 0.0002 * number, infer_s)])
    assert sorted(map(decision, times.judgements().values())) == ["faster", "undecided"]
    assert times.is_decided() == decides


def test_the_same_runs_are_judged_by_how_their_number_came_about(tmp_path: Path) -> None:
    runs = [tuple(scattered(tmp_path, slowness, seed=seed + number) for number in range(4))
            for seed, slowness in ((0, {}), (50, {"backward": 1.5}))]  # fmt: skip
    rows = {}
    for ending in ("decided", "repeat"):
        sides = [Group(label, of_side, turns=Turns(4, ending)) for label, of_side in zip("ab", runs, strict=True)]
        rows[ending] = ratios(sides, "case").iloc[0]
        assert separation(sides, CASE, "b") == "slower"
        assert turn_decisions(sides).iloc[0].to_list() == [CASE, "b", "slower", "slower"]
    assert rows["decided"]["ratio"] == pytest.approx(rows["repeat"]["ratio"])
    assert rows["decided"]["high"] > rows["repeat"]["high"]


@pytest.mark.parametrize(("num_base", "num_new", "slowness", "expected"), [
    (1, 1, 2.0, None), (2, 1, 2.0, None), (2, 2, 2.0, "slower"), (2, 2, 0.5, "faster"), (2, 2, 1.0, None)])
def test_separation_needs_two_runs_each(tmp_path: Path, num_base: int, num_new: int, slowness: float,
                                        expected: str | None) -> None:
    base, new = (Group(label, tuple(scattered(tmp_path, {"backward": factor}, seed=number, num_iterations=8)
                                    for number in range(count)))
                 for label, factor, count in (("a", 1.0, num_base), ("b", slowness, num_new)))
    assert separation([base, new], CASE, "b") == expected
    if num_base == num_new == 1:
        assert ratios([base, new], "case")["reason"].to_list() == [ONE_RUN_EACH]


def test_two_batch_sizes_are_judged_by_the_time_of_a_sample(tmp_path: Path) -> None:
    base, new = (load_run(publish(tmp_path / str(size), "vgg16", manifest("profile", "vgg16"), (
        case_entry("vgg16", 32, "train", batch_size=size), case_tables("train", 32)))) for size in (8, 32))
    new = slowed(new, 3)
    times = TurnTimes()
    for _ in range(MIN_TURNS):
        times.add([base], [new])
    (judgement,) = times.judgements().values()
    assert judgement.ratio == pytest.approx(3 / 4)
    assert times.is_decided()
