"""What a race found as rows, and the file that holds them."""

import math
from pathlib import Path
from typing import Any

import pytest

from charact.analysis.findings._finding import Place
from charact.core.errors import UserError
from charact.remedies.race import Candidate, Numbers, Result, Untried
from charact.remedies.remedy import Setting
from charact.remedies.tried import FILE, NOT_FINITE, Tried, TriedRemedy, read_tried, tried, write_tried


def candidate(label: str, state: str = "faster", ratios: tuple[float, ...] = (0.5,) * 4, *, remedy: str = "workers",
              place: Place | None = None, **facts: Any) -> Candidate:
    """Return settings of a remedy with a turn for each ratio, against 2 s; a trial adds 100 bytes, then 300."""
    new = Candidate((Setting(remedy, {}, label, f"code of {label}", place),), state, **facts)
    for number, ratio in enumerate(ratios):
        new.add(Numbers(2.0, 1000.0), Numbers(2.0 * ratio, 1100.0 + 200 * (number % 2)))
    return new


def rows(result: Result) -> list[tuple[str, str]]:
    return [(each.remedy, each.state) for each in tried(result, []).remedies]


def test_numbers_of_a_remedy() -> None:
    new = candidate("a", ratios=(0.4, 0.5, 0.4, 0.5), place=Place("train.py", 7), losses_frac=0.0)
    result = Result(baseline_s=2.0, candidates=[new], own_losses_frac=0.25, num_trials=9, ending="time")
    facts = tried(result, ["x.pt"])
    (row,) = facts.remedies
    ratio = math.sqrt(0.2)
    assert row.iteration_s == pytest.approx(2 * ratio)
    assert row.saves_frac == pytest.approx(1 - ratio)
    assert row.low_frac is not None
    assert row.high_frac is not None
    assert (1 - row.low_frac) * (1 - row.high_frac) == pytest.approx(ratio**2)
    assert row.low_frac < row.saves_frac < row.high_frac
    assert row.added_bytes == pytest.approx(200)
    assert (row.num_turns, row.change, row.place, row.reason) == (4, "code of a", "train.py:7", None)
    assert (row.losses_frac, row.changes_results) == (0.0, False)
    assert (facts.baseline_s, facts.own_losses_frac, facts.num_trials, facts.ending, facts.written_files) == (
        2.0, 0.25, 9, "time", ["x.pt"])


def test_a_remedy_without_a_turn_or_an_interval() -> None:
    failed = candidate("a", "failed", (), failure="out of memory")
    (row,) = tried(Result(candidates=[failed]), []).remedies
    assert row == TriedRemedy("a", "failed", reason="out of memory", change="code of a")
    (row,) = tried(Result(candidates=[candidate("a", "dropped", (1.1,))]), []).remedies
    assert row.saves_frac == pytest.approx(-0.1)
    assert (row.low_frac, row.high_frac) == (None, None)


@pytest.mark.parametrize(("state", "shown"), [
    ("faster", "helps"), ("same", "no difference"), ("slower", "slower"), ("undecided", "not decided"),
    ("trying", "not decided"), ("dropped", "dropped"), ("failed", "failed")])
def test_states_of_candidates(state: str, shown: str) -> None:
    assert rows(Result(candidates=[candidate("a", state)])) == [("a", shown)]


@pytest.mark.parametrize(("state", "shown"), [
    ("faster", "proven"), ("same", "seems to help"), ("undecided", "seems to help"), ("failed", "seems to help")])
def test_the_proof_takes_the_place_of_its_settings(state: str, shown: str) -> None:
    one, other = candidate("a"), candidate("b")
    proof = Candidate(one.settings, state)
    result = Result(candidates=[one, other], proof=proof)
    assert sorted(rows(result)) == [("a", shown), ("b", "helps")]
    facts = tried(result, [])
    assert (facts.proven is None) == (state != "faster")


def test_a_combination_is_a_row_of_its_own() -> None:
    one, other = candidate("a", place=Place("x.py", 1)), candidate("b", place=Place("y.py", 2))
    same_place = candidate("c", place=Place("x.py", 1))
    proof = Candidate((*one.settings, *other.settings, *same_place.settings), "faster")
    row, *others = tried(Result(candidates=[one, other], proof=proof), []).remedies
    assert (row.remedy, row.state) == ("a + b + c", "proven")
    assert (row.change, row.place) == ("code of a; code of b; code of c", "x.py:1, y.py:2")
    assert [each.remedy for each in others] == ["a", "b"]


def test_the_best_come_first_and_those_not_tried_last() -> None:
    result = Result(
        untried=[Untried("fused", "no optimizer")],
        candidates=[candidate("failed", "failed", ()), candidate("slower", "slower", (1.3,) * 4),
                    candidate("less", "faster", (0.9,) * 4), candidate("more", "faster", (0.6,) * 4),
                    candidate("none", "undecided", ())],
        proof=candidate("proof", "faster"))
    assert rows(result) == [("proof", "proven"), ("more", "helps"), ("less", "helps"), ("slower", "slower"),
                            ("none", "not decided"), ("failed", "failed"), ("fused", "not tried")]
    assert tried(result, []).remedies[-1].reason == "no optimizer"


@pytest.mark.parametrize(("losses", "own", "remedy", "changes"), [
    (None, None, "workers", None), (0.0, None, "workers", False), (0.001, None, "workers", False),
    (0.0011, None, "workers", True), (0.0011, 0.0011, "workers", False), (0.0012, 0.0011, "workers", True),
    (math.inf, None, "workers", True), (0.0, None, "bf16-autocast", True), (None, None, "tf32", True)])
def test_results_change_beyond_rounding_or_by_another_precision(losses: float | None, own: float | None, remedy: str,
                                                               changes: bool | None) -> None:
    new = candidate("a", remedy=remedy, losses_frac=losses)
    (row,) = tried(Result(candidates=[new], own_losses_frac=own), []).remedies
    assert row.changes_results is changes
    assert row.losses_frac == (NOT_FINITE if losses == math.inf else losses)


def test_the_file_holds_all_that_was_found(tmp_path: Path) -> None:
    new = candidate("<b>ä", losses_frac=math.inf, place=Place("träin.py", 7))
    result = Result(baseline_s=2.0, candidates=[new], ending="interrupted", num_trials=3)
    facts = tried(result, ["new\nline", "bad\udcff"], "advice\n\udcff")  # names of files that are no UTF-8
    write_tried(facts, tmp_path)
    assert read_tried(tmp_path) == facts
    assert all("\n" not in text for text in (*facts.written_files, str(facts.advice)))


def test_a_run_without_the_file_or_with_a_damaged_one(tmp_path: Path) -> None:
    assert read_tried(tmp_path) is None
    write_tried(Tried([], None, "decided", 0), tmp_path)
    content = (tmp_path / FILE).read_text()
    for damaged in (content[:-5], "[]", content.replace('"decided"', '"never"'), content.replace("0", "-1"), ""):
        assert damaged != content
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(UserError, match=FILE):
            read_tried(tmp_path)
    (tmp_path / FILE).write_bytes(b"\xff")
    with pytest.raises(UserError, match=FILE):
        read_tried(tmp_path)
