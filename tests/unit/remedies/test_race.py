"""Races of remedies whose effects are known, on a scripted clock."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.records import OPTIONS, watched_entry

from charact.analysis.common.significance import MIN_TURNS
from charact.core.errors import UserError
from charact.record.reader import Run
from charact.remedies import race as race_file
from charact.remedies.process import Trial
from charact.remedies.program import Program
from charact.remedies.race import Candidate, Race, Result
from charact.remedies.remedy import Setting, all_remedies

WATCHED = {"script": "train.py", "arguments": [], "skip": None, "iterations": None, "passes": []}
TURN = 2
"""Trials of a turn of one candidate."""


@cache
def run_of(times_s: tuple[float, ...], peak_bytes: float | None = None, case: str = "train.py-train") -> Run:
    """Return a watched program's run in memory, with these iteration times."""
    entry = watched_entry("train.py", case=case)
    entry["passes"]["timing"]["program"] = {"process_peak_bytes": peak_bytes}
    iterations = pd.DataFrame({"case": case, "iteration": range(len(times_s)), "phase": "forward", "part": None,
                               "host_s": times_s, "device_s": np.nan})
    return Run(Path("none"), {"cases": [entry], "options": WATCHED}, _tables={"iterations": iterations})


def setting(label: str, *, remedy: str = "workers", expected_frac: float = 0.1) -> Setting:
    return Setting(remedy, {}, label, label, expected_frac=expected_frac)


class Scripted:
    """Command whose trials take scripted times, as does the clock that the race sees.

    `ratios`: iteration time by settings' labels, such as "a" or "a+b", of the unchanged program's 1 s; the product of
    those of the single settings where a combination has none. `special`: what a trial does instead, by its number.
    """

    def __init__(self, ratios: Mapping[str, float], *, noise: float = 0.0, seed: int = 0,
                 losses: Mapping[str, Sequence[float]] | None = None, peaks: Mapping[str, float] | None = None,
                 special: Callable[[int, str], Trial | None] = lambda number, label: None,
                 trial_s: Callable[[int], float] = lambda number: 5.0) -> None:
        self._ratios, self._noise, self._random = ratios, noise, np.random.default_rng(seed)
        self._losses, self._peaks, self._special, self._trial_s = losses or {}, peaks or {}, special, trial_s
        self.now_s = 100.0
        self.labels: list[str] = []
        self.limits_s: list[float] = []
        self.options: list[list[str]] = []
        self.places: list[str] = []
        self.times_s: dict[str, list[float]] = {}

    def measured(self, options: Sequence[str], settings: Sequence[Setting], out: Path, limit_s: float) -> Trial:
        """Return a trial with two iterations of the scripted mean."""
        label = "+".join(each.label for each in settings)
        self.labels.append(label)
        self.limits_s.append(limit_s)
        self.options.append(list(options))
        self.places.append(out.name)
        number = len(self.labels)
        self.now_s += self._trial_s(number)
        if (special := self._special(number, label)) is not None:
            return special
        product = float(np.prod([self._ratios[each.label] for each in settings]))
        time_s = self._ratios.get(label, product)
        if self._noise:
            time_s = round(time_s * float(np.exp(self._random.normal(0, self._noise))), 3)
        self.times_s.setdefault(label, []).append(time_s)
        run = run_of((0.75 * time_s, 1.25 * time_s), self._peaks.get(label))
        return Trial(run, tuple(self._losses.get(label, ())))


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run a race of settings of a scripted command."""
    def race(command: Scripted, *settings: Setting, max_minutes: float = 60.0, trial_s: float = 1.0,
             allow_numerics: bool = False, is_watched: bool = True) -> Result:
        monkeypatch.setattr(race_file, "time", SimpleNamespace(monotonic=lambda: command.now_s))
        lines: list[str] = []
        first = run_of((1.0,) * 5)
        if not is_watched:
            first = Run(first.path, first.manifest | {"options": OPTIONS}, _tables={"iterations": first.iterations})
        race = Race(command, Program(first), tmp_path, max_minutes,  # type: ignore[arg-type]
                    trial_s=trial_s, allow_numerics=allow_numerics, report=lines.append)
        result = race.run(settings)
        assert len(lines) == result.num_trials == len(command.labels)
        return result

    return race


Raced = Callable[..., Result]


def proven(result: Result) -> list[str]:
    """Return the labels of the proven combination."""
    proof = result.proof
    return [each.label for each in proof.settings] if proof is not None and proof.state == "faster" else []


def states(result: Result) -> dict[str, str]:
    return {each.settings[0].label: each.state for each in result.candidates}


def test_a_remedy_without_noise_is_proven_in_the_fewest_turns(raced: Raced) -> None:
    command = Scripted({"a": 0.7}, peaks={"": 1000.0, "a": 1500.0})
    result = raced(command, setting("a"))
    assert proven(result) == ["a"]
    assert states(result) == {"a": "faster"}
    assert result.ending == "decided"
    for candidate in (result.candidates[0], result.proof):
        assert isinstance(candidate, Candidate)
        assert candidate.num_turns == MIN_TURNS
        assert candidate.judgement.ratio == pytest.approx(0.7)
        assert candidate.new.sample().value == pytest.approx(0.7)
        assert candidate.added_bytes == [500.0] * MIN_TURNS
    assert result.baseline_s == pytest.approx(1.0)
    assert command.labels == ["", "a", "a", ""] * 4  # every second turn is reversed; the proof begins anew
    assert command.places[:3] == ["001-baseline", "002-workers", "003-workers"]


@pytest.mark.parametrize("label", ["", "a"])
def test_memory_that_one_trial_does_not_record_is_not_compared(raced: Raced, label: str) -> None:
    result = raced(Scripted({"a": 0.7}, peaks={label: 1000.0}), setting("a"))
    assert result.candidates[0].added_bytes == []
    assert result.candidates[0].num_turns == MIN_TURNS


def test_the_interval_of_a_proof_holds_the_saving(raced: Raced) -> None:
    results = [raced(Scripted({"a": 0.7}, noise=0.03, seed=seed), setting("a")) for seed in range(40)]
    assert all(proven(result) == ["a"] for result in results)
    judgements = [result.proof.judgement for result in results if result.proof is not None]
    assert sum(each.low <= 0.7 <= each.high for each in judgements if each.low and each.high) >= 36
    assert all(each.high is not None and each.high < 1 for each in judgements)


@pytest.mark.slow_variants
@pytest.mark.parametrize("num_races", [50, 200])
def test_a_remedy_that_does_nothing_is_not_recommended(raced: Raced, num_races: int) -> None:
    results = [raced(Scripted({"a": 1.0}, noise=0.03, seed=seed), setting("a")) for seed in range(num_races)]
    assert sum(proven(result) == [] for result in results) >= 0.98 * num_races


def test_a_small_difference_is_shown_where_noise_is_smaller(raced: Raced) -> None:
    result = raced(Scripted({"a": 0.98}, noise=0.002), setting("a", expected_frac=0.3))
    assert states(result) == {"a": "faster"}  # 2 % is shown to be a difference where noise is 0.2 %


@pytest.mark.parametrize(("ratio", "num_turns"), [(1.3, 1), (1.201, 1), (1.199, 2), (0.991, 2)])
def test_a_remedy_that_does_not_help_is_dropped(raced: Raced, ratio: float, num_turns: int) -> None:
    result = raced(command := Scripted({"a": ratio}), setting("a"))
    assert states(result) == {"a": "dropped"}
    assert result.proof is None
    assert len(command.labels) == TURN * num_turns


@pytest.mark.parametrize("ratios", [{"a": 0.9, "b": 0.8}, {"a": 0.8, "b": 0.9}, {"a": 0.9, "b": 0.9}])
def test_of_two_settings_of_a_remedy_the_better_is_kept(raced: Raced, ratios: dict[str, float]) -> None:
    better = min(ratios, key=lambda label: ratios[label])
    (worse,) = ratios.keys() - {better}
    result = raced(command := Scripted(ratios), setting("a"), setting("b"))
    assert states(result) == {better: "faster", worse: "dropped"}
    assert proven(result) == [better]
    assert command.labels.count(worse) == 2
    assert "a+b" not in command.labels
    assert "b+a" not in command.labels


def test_of_settings_the_most_promising_are_tried_first(raced: Raced) -> None:
    labels = "abcdefghij"
    command = Scripted(dict.fromkeys(labels, 1.1))
    names = [name for name, remedy in all_remedies().items() if not remedy.is_slow]
    raced(command, *(setting(label, remedy=names[number], expected_frac=number / 100)
                     for number, label in enumerate(labels)))
    assert command.labels == ["", *"jihgfedc", *"cdefghij", "", "", *"ba", *"ab", ""]


TWO = setting("a", remedy="workers"), setting("b", remedy="fused")


@pytest.mark.parametrize(("together", "expected"), [
    (0.72, ["a", "b"]), (0.792, ["a", "b"]), (0.793, ["a"]), (0.8, ["a"]), (0.85, ["a"])])
def test_remedies_are_combined_if_the_second_adds_to_the_first(raced: Raced, together: float, expected: list[str]
                                                               ) -> None:
    result = raced(command := Scripted({"a": 0.8, "b": 0.9, "a+b": together}), *reversed(TWO))
    assert proven(result) == expected
    proof = result.proof
    assert proof is not None
    assert proof.judgement.ratio == pytest.approx(together if len(expected) == 2 else 0.8)
    race, rest = command.labels[:12], command.labels[12:]
    assert sorted(race) == sorted(["", "a", "b"] * 4)
    assert rest[:4] == ["a", "a+b", "a+b", "a"]  # against the best one, not against the unchanged program
    assert set(rest[4:]) == {"", "+".join(expected)}


def test_a_third_remedy_joins_a_combination(raced: Raced) -> None:
    settings = [setting("a", remedy="workers"), setting("b", remedy="fused"), setting("c", remedy="compile")]
    result = raced(Scripted({"a": 0.8, "b": 0.9, "c": 0.95, "a+b": 0.85}), *settings)
    assert proven(result) == ["a", "c"]


SAME = (2.0, 1.0)
ROUNDED = (2.0, 1.0009)
OTHER = (2.0, 1.0011)


@pytest.mark.parametrize(("losses", "expected"), [
    ({"": SAME, "a": SAME, "b": SAME, "a+b": SAME}, ["a", "b"]),
    ({"": SAME, "a": ROUNDED, "b": ROUNDED, "a+b": ROUNDED}, ["a", "b"]),
    ({"": SAME, "a": SAME, "b": SAME, "a+b": OTHER}, ["a"]),
    ({"": SAME, "a": OTHER, "b": SAME, "a+b": OTHER}, ["b"]),
    ({"": SAME, "a": OTHER, "b": OTHER}, []),
    ({"a": OTHER, "b": SAME}, ["a", "b"]),  # there is nothing to compare with
    ({"": SAME, "a": SAME[:1], "b": ()}, ["a", "b"]),
])
def test_what_changes_the_losses_is_not_recommended(raced: Raced, losses: dict[str, Sequence[float]],
                                                    expected: list[str]) -> None:
    ratios = {"a": 0.8, "b": 0.9}
    assert proven(raced(Scripted(ratios, losses=losses), *TWO)) == expected
    assert proven(raced(Scripted(ratios, losses=losses), *TWO, allow_numerics=True)) == ["a", "b"]


def test_losses_may_differ_as_those_of_the_unchanged_program_do(raced: Raced) -> None:
    own = itertools.cycle([(1.0,), (1.01,)])

    class Random(Scripted):
        def measured(self, options: Any, settings: Any, out: Path, limit_s: float) -> Trial:
            trial = super().measured(options, settings, out, limit_s)
            return trial if settings else Trial(trial.run, next(own))

    def result(loss: float) -> Result:
        return raced(Random({"a": 0.8}, losses={"a": (loss,)}), setting("a"))

    like = result(1.009)
    assert proven(like) == ["a"]
    assert like.own_losses_frac == pytest.approx(0.01 / 1.01)
    assert like.candidates[0].losses_frac == pytest.approx(0.009 / 1.009)
    assert proven(result(1.02)) == []


def test_precision_is_lowered_on_demand_alone(raced: Raced) -> None:
    bf16 = setting("a", remedy="bf16-autocast")
    refused = raced(Scripted({"a": 0.5}, losses={"": SAME, "a": SAME}), bf16)
    assert (states(refused), refused.proof) == ({"a": "faster"}, None)
    assert proven(raced(Scripted({"a": 0.5}), bf16, allow_numerics=True)) == ["a"]


def test_a_trial_that_fails_is_the_end_of_its_setting(raced: Raced) -> None:
    def special(number: int, label: str) -> Trial | None:
        return Trial(None, failure="out of memory") if label == "a" else None

    result = raced(command := Scripted({"a": 0.5, "b": 0.9}, special=special), *TWO)
    assert states(result) == {"a": "failed", "b": "faster"}
    assert (result.candidates[0].failure, result.candidates[0].num_turns) == ("out of memory", 0)
    assert proven(result) == ["b"]
    assert command.labels.count("a") == 1


@pytest.mark.parametrize("run", [None, run_of(())])
def test_a_trial_without_iterations_fails(raced: Raced, run: Run | None) -> None:
    result = raced(Scripted({"a": 0.5}, special=lambda number, label: Trial(run) if label == "a" else None),
                   setting("a"))
    assert states(result) == {"a": "failed"}
    assert result.candidates[0].failure == "no iteration was timed"


def test_a_case_under_another_name_counts(raced: Raced) -> None:
    other = run_of((0.5, 0.7), case="train.py-infer")
    result = raced(Scripted({"a": 0.5}, special=lambda number, label: Trial(other) if label == "a" else None),
                   setting("a"))
    assert result.candidates[0].new.sample().value == pytest.approx(0.6)


def test_iterations_of_other_cases_do_not_count(raced: Raced) -> None:
    def both() -> Run:
        train, infer = run_of((0.5, 0.5)), run_of((9.0,) * 3, case="train.py-infer")
        rows = pd.concat([train.iterations, infer.iterations], ignore_index=True)
        return Run(Path("none"), {"cases": [*infer.manifest["cases"], *train.manifest["cases"]], "options": WATCHED},
                   _tables={"iterations": rows})

    result = raced(Scripted({"a": 0.5}, special=lambda number, label: Trial(both()) if label == "a" else None),
                   setting("a"))
    assert result.candidates[0].new.sample().value == pytest.approx(0.5)


def test_an_unchanged_program_that_fails_at_once_ends_the_race(raced: Raced) -> None:
    with pytest.raises(UserError, match="out of memory"):
        raced(Scripted({"a": 0.5}, special=lambda number, label: Trial(None, failure="out of memory")), setting("a"))


@pytest.mark.parametrize("failing", [4, 8, 9])
def test_a_turn_in_which_the_unchanged_program_fails_does_not_count(raced: Raced, failing: int) -> None:
    command = Scripted({"a": 0.7}, special=lambda number, label: Trial(None, failure="killed")
                       if number == failing else None)
    result = raced(command, setting("a"))
    assert command.labels[failing - 1] == ""
    assert proven(result) == ["a"]
    assert result.baseline_s == 1.0
    assert len(command.labels) == TURN * (2 * MIN_TURNS + 1)
    assert [each.num_turns for each in (result.candidates[0], result.proof) if each] == [MIN_TURNS, MIN_TURNS]


def test_a_program_that_fails_in_all_turns_of_the_proof_does_not_hang(raced: Raced) -> None:
    command = Scripted({"a": 0.7}, special=lambda number, label: Trial(None, failure="killed")
                       if number > TURN * MIN_TURNS and not label else None)
    result = raced(command, setting("a"), max_minutes=5)
    assert (states(result), result.proof, result.ending) == ({"a": "faster"}, None, "time")
    assert command.now_s <= 100 + 5 * 60


def test_a_combination_that_fails_or_has_no_turn_is_not_recommended(raced: Raced) -> None:
    for failing in ("a+b", "a"):  # in its turns against the best remedy, which are trials 13 to 16
        def special(number: int, label: str, failing: str = failing) -> Trial | None:
            return Trial(None, failure="no") if 13 <= number <= 16 and label == failing else None

        assert proven(raced(Scripted({"a": 0.8, "b": 0.9}, special=special), *TWO)) == ["a"]


def test_a_setting_that_fails_in_its_proof_is_not_proven(raced: Raced) -> None:
    command = Scripted({"a": 0.7}, special=lambda number, label: Trial(None, failure="killed")
                       if number > 10 and label else None)
    result = raced(command, setting("a"))
    assert result.proof is not None
    assert (result.proof.state, result.proof.failure, result.proof.num_turns) == ("failed", "killed", 1)


@pytest.mark.parametrize(("at", "state", "num_turns"), [(1, "undecided", 0), (7, "undecided", 3), (8, "undecided", 3)])
def test_an_interrupted_race_keeps_what_is_decided(raced: Raced, at: int, state: str, num_turns: int) -> None:
    def special(number: int, label: str) -> Trial | None:
        if number == at:
            raise KeyboardInterrupt
        return None

    result = raced(Scripted({"a": 0.7}, special=special), setting("a"))
    assert (result.ending, states(result), result.proof) == ("interrupted", {"a": state}, None)
    assert result.candidates[0].num_turns == num_turns


@pytest.mark.parametrize("at", [TURN * MIN_TURNS + 1, TURN * 2 * MIN_TURNS])
def test_a_proof_that_is_interrupted_leaves_the_race_as_decided(raced: Raced, at: int) -> None:
    def special(number: int, label: str) -> Trial | None:
        if number == at:
            raise KeyboardInterrupt
        return None

    result = raced(Scripted({"a": 0.7}, special=special), setting("a"))
    assert (result.ending, states(result), result.proof) == ("interrupted", {"a": "faster"}, None)


def test_a_race_without_anything_to_prove_takes_the_whole_time(raced: Raced) -> None:
    """Ratios of 0.8 and 1.2 by turns are never decided."""
    times = itertools.cycle([0.8, 1.2])
    command = Scripted({}, special=lambda number, label: Trial(run_of((next(times) if label else 1.0,))))
    result = raced(command, setting("a"), max_minutes=20)
    assert (result.ending, states(result), result.proof) == ("time", {"a": "undecided"}, None)
    assert 1200 - 10 <= command.now_s - 100 <= 1200


@pytest.mark.parametrize(("ratio", "state", "num_turns", "num_proofs", "expected"), [
    (0.969, "undecided", 3, MIN_TURNS, ["a"]), (0.971, "faster", MIN_TURNS, 3, [])])
def test_what_seems_to_help_leaves_the_time_of_a_proof(raced: Raced, ratio: float, state: str, num_turns: int,
                                                       num_proofs: int, expected: list[str]) -> None:
    result = raced(command := Scripted({"a": ratio}), setting("a"), max_minutes=70 / 60)
    assert (states(result), result.candidates[0].num_turns) == ({"a": state}, num_turns)
    assert proven(result) == expected
    assert len(command.labels) == TURN * (num_turns + num_proofs)


def test_one_turn_is_not_enough_for_a_proof(raced: Raced) -> None:
    result = raced(Scripted({"a": 0.5}), setting("a"), max_minutes=15 / 60)
    assert (states(result), result.candidates[0].num_turns, result.proof) == ({"a": "undecided"}, 1, None)


def test_a_proof_ends_with_the_time(raced: Raced) -> None:
    """The proof gets another, noisy machine, on which nothing is decided."""
    random = np.random.default_rng(1)

    def special(number: int, label: str) -> Trial | None:
        if number <= TURN * MIN_TURNS:
            return None
        time_s = float(np.exp(random.normal(0, 0.5)))
        return Trial(run_of((time_s,)))

    result = raced(command := Scripted({"a": 0.7}, special=special), setting("a"), max_minutes=10)
    assert result.proof is not None
    assert (result.proof.state, result.ending) == ("undecided", "time")
    assert 600 - 10 <= command.now_s - 100 <= 600


def test_a_short_time_leaves_a_turn_for_one_setting(raced: Raced) -> None:
    result = raced(command := Scripted({"a": 0.7, "b": 0.8}), setting("a", expected_frac=0.2),
                   setting("b", remedy="fused"), max_minutes=0.1)
    assert command.labels == ["", "a"]
    assert (states(result), result.ending) == ({"a": "undecided"}, "time")
    (untried,) = result.untried
    assert (untried.remedy, "--only fused" in untried.reason) == ("fused", True)


@pytest.mark.parametrize(("max_minutes", "number"), [(10, 2), (15, 6), (20, 8), (100, 10)])
def test_settings_are_as_many_as_the_time_allows(raced: Raced, max_minutes: float, number: int) -> None:
    """Trials of 40 s: the proof takes 320 s or 35 %, and two turns of n settings 80 (n + 1) s."""
    labels = list("abcdefghij")
    result = raced(Scripted({label: 1.01 for label in labels}, trial_s=lambda number: 40.0),
                   *(setting(label) for label in labels), max_minutes=max_minutes, trial_s=40.0)
    assert len(result.candidates) == number


@pytest.mark.parametrize(("proof_trial_s", "num_turns"), [(10.0, 4), (11.4, 4), (14.0, 0), (60.0, 0)])
def test_a_proof_without_enough_turns_in_the_time_is_none(raced: Raced, proof_trial_s: float, num_turns: int) -> None:
    """The machine becomes slow after a race of 40 s, and 80 s are left, and 12 s more for the last turns."""
    command = Scripted({"a": 0.7}, trial_s=lambda number: 5.0 if number <= TURN * MIN_TURNS else proof_trial_s)
    result = raced(command, setting("a"), max_minutes=2)
    assert result.candidates[0].state == "faster"
    assert (result.proof.num_turns if result.proof else 0) == num_turns
    assert result.ending == ("decided" if num_turns else "time")
    assert command.now_s - 100 <= max(1.1 * 120, 40 + 2 * proof_trial_s)


def test_no_combination_is_tried_without_time_for_it_and_the_proof(raced: Raced) -> None:
    ratios = {"a": 0.8, "b": 0.9}
    needed_s = 5.0 * (12 + 2 * 2 + 2 * MIN_TURNS)
    assert proven(raced(Scripted(ratios), *TWO, max_minutes=needed_s / 60)) == ["a", "b"]
    assert proven(raced(Scripted(ratios), *TWO, max_minutes=(needed_s - 1) / 60)) == ["a"]


def test_the_baseline_is_the_mean_of_all_its_trials(raced: Raced) -> None:
    times = itertools.chain([1.0, 1.0, 4.0], itertools.repeat(1.0))
    seen: list[float] = []

    def special(number: int, label: str) -> Trial | None:
        if label:
            return None
        seen.append(next(times))
        return Trial(run_of((seen[-1],)))

    result = raced(Scripted({"a": 1.1}, special=special), setting("a"))
    result_of_more = raced(Scripted({"a": 0.9}, special=special), setting("a"))
    assert result.baseline_s == 1.0
    assert result_of_more.baseline_s == pytest.approx(fmean(seen[2:]))


def test_a_trial_may_take_five_times_as_long_as_the_unchanged_program(raced: Raced) -> None:
    command = Scripted({"a": 1.1}, trial_s=lambda number: {1: 11.0, 2: 100.0}.get(number, 20.0))
    raced(command, setting("a"))
    assert command.limits_s == [60, 60, 60, 60]  # the unchanged program took 11 s, the remedy's 100 s do not count
    command = Scripted({"a": 1.1}, trial_s=lambda number: 30.0)
    raced(command, setting("a"))
    assert command.limits_s == [60, 150, 150, 150]
    command = Scripted({"a": 0.7}, trial_s=lambda number: 30.0 if number == 1 else 10.0)
    raced(command, setting("a"))
    assert set(command.limits_s[1:]) == {150}  # the longest trial of the unchanged program counts


@pytest.mark.parametrize(("iteration_s", "number"), [
    (0.1, 30), (0.0301, 100), (0.003, 1000), (0.001, 1000), (0.25, 12), (0.2, 15), (7.0, 12)])
def test_a_trial_has_iterations_for_three_seconds(tmp_path: Path, iteration_s: float, number: int) -> None:
    program = Program(run_of((iteration_s, 100.0, iteration_s)))
    command = Scripted({"a": 1.5})
    Race(command, program, tmp_path, 60, trial_s=4.0, allow_numerics=False,  # type: ignore[arg-type]
         report=lambda line: None).run([setting("a")])
    assert command.options[0] == ["--iterations", str(number), "--stop"]


@pytest.mark.parametrize(("least", "number"), [(29, 30), (31, 31), (50, 50), (5000, 200)])
def test_a_setting_may_need_more_iterations(tmp_path: Path, least: int, number: int) -> None:
    command = Scripted({"a": 1.5, "b": 1.5})
    more = Setting("compile", {}, "b", "b", least_iterations=least)
    Race(command, Program(run_of((0.1,) * 3)), tmp_path, 60, trial_s=4.0, allow_numerics=False,  # type: ignore[arg-type]
         report=lambda line: None).run([setting("a"), more])
    assert {options[1] for options in command.options} == {str(number)}


@pytest.mark.parametrize(("facts", "sizes"), [
    ({"mode": "train"}, []),
    ({"mode": "train", "attention": "math", "lora_rank": 8}, ["--attention", "math", "--lora", "8"]),
    ({"mode": "decode", "output_size": 9, "cache": "int8"}, ["--output-sizes", "9", "--cache", "int8"])])
def test_a_trial_of_a_built_in_workload_times_its_case_for_three_seconds(facts: dict[str, Any], sizes: list[str]
                                                                         ) -> None:
    run = run_of((1.0, 1.0))
    entry = run.manifest["cases"][0] | {"input_size": 32, "batch_size": 4, "precision": "bf16"} | facts
    built_in = Run(run.path, {"cases": [entry], "options": OPTIONS}, _tables={"iterations": run.iterations})
    assert race_file.trial_options(Program(built_in), 3.0) == [
        "--passes", "timing", "--max-seconds", "3", "--mode", facts["mode"], "--input-sizes", "32",
        "--batch-sizes", "4", "--precision", "bf16", *sizes]


@pytest.mark.parametrize(("losses", "expected"), [((1.0, 2.0), ["a"]), ((1.0, 2.0, 3.0, 4.0), ["a"]),
                                                  ((1.0, 2.1), []), ((1.0, 2.0, 3.1, 4.0), [])])
def test_losses_of_a_workload_are_compared_as_far_as_both_trials_have_them(raced: Raced, losses: Sequence[float],
                                                                           expected: list[str]) -> None:
    """Its trials end after a time, in which one has more iterations than another."""
    result = raced(Scripted({"a": 0.5}, losses={"": (1.0, 2.0, 3.0), "a": losses}), setting("a"), is_watched=False)
    assert proven(result) == expected
    assert result.candidates[0].losses_frac is not None
    watched = raced(Scripted({"a": 0.5}, losses={"": (1.0, 2.0, 3.0), "a": losses}), setting("a"))
    assert watched.candidates[0].losses_frac is None


def test_a_trial_that_fails_in_a_late_turn_is_not_decided_by_the_earlier_ones(raced: Raced) -> None:
    times_s = iter([0.5, 1.4, 0.6, 1.3])

    def special(number: int, label: str) -> Trial | None:
        if not label:
            return None
        time_s = next(times_s, None)
        return Trial(None, failure="out of memory") if time_s is None else Trial(run_of((time_s,)))

    (candidate,) = raced(Scripted({"a": 1.0}, special=special), setting("a")).candidates
    assert (candidate.state, candidate.failure, candidate.num_turns) == ("failed", "out of memory", 4)


@pytest.mark.parametrize("at", [3, 12])
def test_a_trial_that_fails_ends_its_setting_with_the_reason_whatever_it_saved(raced: Raced, at: int) -> None:
    """It fails in its second turn, in which slower settings are dropped, or in the proof."""
    failed = Trial(None, failure="out of memory")
    command = Scripted({"a": 1.1 if at == 3 else 0.7}, special=lambda number, label: failed if number >= at else None)
    result = raced(command, setting("a"))
    candidate = result.candidates[0] if at == 3 else result.proof
    assert candidate is not None
    assert (candidate.state, candidate.failure) == ("failed", "out of memory")


def test_settings_without_a_turn_are_not_dropped(raced: Raced) -> None:
    """Of nine settings the last one races alone, and in its first two turns the unchanged program fails."""
    failed = Trial(None, failure="out of memory")
    result = raced(command := Scripted(dict.fromkeys("abcdefgh", 1.3) | {"i": 0.7},
                                       special=lambda number, label: failed if number in (10, 13) else None),
                   *(setting(label) for label in "abcdefghi"))
    assert command.labels[9:13] == ["", "i", "i", ""]
    assert proven(result) == ["i"]


def test_two_settings_of_a_remedy_are_not_combined(raced: Raced) -> None:
    """Eight settings race together, so that the ninth is not compared with the best of its remedy."""
    result = raced(Scripted({"a": 0.7, "i": 0.8} | dict.fromkeys("bcdefgh", 1.3)),
                   *(setting(label) for label in "abcdefghi"))
    assert states(result) == {"a": "faster", "i": "faster"} | dict.fromkeys("bcdefgh", "dropped")
    assert proven(result) == ["a"]


def test_a_remedy_of_which_a_setting_was_tried_counts_as_tried(raced: Raced) -> None:
    result = raced(Scripted({"a": 0.7, "b": 0.8}), setting("a", expected_frac=0.2), setting("b"), max_minutes=0.1)
    assert (states(result), result.untried) == ({"a": "undecided"}, [])


def test_what_is_slower_on_fresh_turns_is_not_recommended(raced: Raced) -> None:
    """The proof ends as soon as that is known."""
    command = Scripted({"a": 0.7}, special=lambda number, label: Trial(run_of((1.3,))) if (
        label and number > TURN * MIN_TURNS) else None)
    result = raced(command, setting("a"))
    assert result.proof is not None
    assert (result.proof.state, result.ending) == ("slower", "decided")
    assert len(command.labels) == 2 * TURN * MIN_TURNS


def test_losses_that_differ_once_are_different(raced: Raced) -> None:
    run = run_of((0.7,))
    trials = itertools.chain([Trial(run, (1.0, 2.1))], itertools.repeat(Trial(run, (1.0, 2.0))))
    result = raced(Scripted({}, losses={"": (1.0, 2.0)}, special=lambda number, label: next(trials) if label else None),
                   setting("a"))
    assert result.candidates[0].losses_frac == pytest.approx(0.1 / 2.1)
    assert result.proof is None


def test_there_is_a_turn_however_short_the_time_is(raced: Raced) -> None:
    result = raced(Scripted({"a": 0.5}), setting("a"), max_minutes=0.01)
    assert (states(result), result.candidates[0].num_turns, result.ending) == ({"a": "undecided"}, 1, "time")


def test_without_settings_nothing_runs(raced: Raced) -> None:
    result = raced(Scripted({}))
    assert (result.num_trials, result.baseline_s, result.proof, result.ending) == (0, None, None, "decided")


@pytest.mark.parametrize(("slow_s", "expected"), [(60.0, ["a"]), (9.0, [])])
def test_a_setting_with_long_trials_is_given_up_for_the_others(raced: Raced, slow_s: float, expected: list[str]
                                                               ) -> None:
    """Trials of "b", such as those that compile, take longer than 2 of the program's 5 s, or not."""
    command = Scripted({"a": 0.8, "b": 0.8}, trial_s=lambda number: slow_s if command.labels[-1] == "b" else 5.0)
    result = raced(command, setting("a", expected_frac=0.2), setting("b", remedy="compile"),
                   max_minutes=(130.0 if slow_s > 10 else 28.0) / 60)
    assert proven(result) == expected
    assert result.ending == "time"
    assert states(result)["b"] == "undecided"


def test_where_not_all_fit_those_with_long_trials_come_last(raced: Raced) -> None:
    slow, quick = setting("compile", remedy="compile", expected_frac=0.3), setting("threads", remedy="threads")
    for max_minutes, labels in ((10, ["compile", "threads"]), (2.6, ["compile", "threads"]),
                                (2, ["threads", "compile"]), (1, ["threads"])):
        result = raced(Scripted({"compile": 1.1, "threads": 1.1}), slow, quick, max_minutes=max_minutes, trial_s=11.0)
        assert [each.settings[0].label for each in result.candidates] == labels


def test_a_trial_of_a_remedy_ends_with_the_time(raced: Raced) -> None:
    """After a trial of 5 s; the unchanged program has its minute, and a remedy as much as is left."""
    command = Scripted({"a": 1.1})
    raced(command, setting("a"), max_minutes=20 / 60)
    assert command.limits_s == [60, 15, 10, 60]
    command = Scripted({"a": 1.1})
    raced(command, setting("a"), max_minutes=8 / 60)
    assert command.limits_s == [60, 5]  # as long as the unchanged program, which took more than half of the time


@pytest.mark.parametrize(("noise", "least", "most"), [(0.001, MIN_TURNS, MIN_TURNS), (0.05, MIN_TURNS + 1, 11),
                                                      (0.2, 12, 12)])
def test_a_proof_goes_on_until_it_is_known_how_much_is_saved(raced: Raced, noise: float, least: int, most: int) -> None:
    proofs = [proof for seed in range(10) if (proof := raced(
        Scripted({"a": 0.5}, noise=noise, seed=seed), setting("a")).proof) is not None and proof.state == "faster"]
    assert len(proofs) >= 8
    numbers = [proof.num_turns for proof in proofs]
    assert least <= np.median(numbers) <= most, numbers
    assert max(numbers) <= 12
    for proof in proofs:
        judgement = proof.judgement
        assert judgement.low is not None
        assert judgement.high is not None
        assert judgement.high - judgement.low <= 0.15 or proof.num_turns == 12


def test_where_the_time_is_short_the_worst_are_given_up_first(raced: Raced) -> None:
    """Two turns of three remedies take 40 s, one of two 15 s, and one of the best one 10 s."""
    result = raced(Scripted({"a": 0.98, "b": 1.0, "c": 0.985}), setting("a", remedy="workers"),
                   setting("b", remedy="fused"), setting("c", remedy="threads"), max_minutes=65 / 60)
    assert {each.settings[0].label: each.num_turns for each in result.candidates} == {"a": 4, "b": 2, "c": 3}


def test_findings_whose_remedies_were_tried(raced: Raced) -> None:
    result = raced(Scripted({"a": 1.1, "b": 1.3}), setting("a", remedy="threads"), setting("b", remedy="fused"))
    assert result.tried_findings() == {"threads", "contention", "optimizer_loop"}
