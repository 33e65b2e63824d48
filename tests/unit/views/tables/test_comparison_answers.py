"""The sentences in which a comparison answers."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import pairs
from support.records import case_entry, case_tables, manifest, publish

from charact.analysis.compare import Group, ignoring_differences
from charact.analysis.compare.matching import Turns
from charact.record.reader import load_run
from charact.views.html.comparison import comparison
from charact.views.tables.comparison_answers import answers, turns_sentence


def groups(tmp_path: Path, factor: float, num_runs: int) -> Sequence[Group]:
    """Return a group of runs, and one in which all phases take `factor` times as long."""
    made = [pairs.pair(tmp_path / str(number), factor, modes=("train",)) for number in range(num_runs)]
    return [Group("a", tuple(before for before, _ in made)), Group("b", tuple(after for _, after in made))]


@pytest.mark.parametrize(("factor", "words"), [
    (0.5, "b is 2.00× faster than a (95 % interval 2.00–2.00): "),
    (2.0, "b is 2.00× slower than a (95 % interval 2.00–2.00): "),
])
def test_a_difference_has_a_direction_an_interval_and_its_phases(tmp_path: Path, factor: float, words: str) -> None:
    first, *_ = answers(groups(tmp_path, factor, 3))
    assert words in first
    assert "95 % interval" in first
    assert "mostly in " in first


def test_single_runs_may_differ_by_noise(tmp_path: Path) -> None:
    first, *_ = answers(groups(tmp_path, 2.0, 1))
    assert first.endswith("one run each cannot show whether that is noise")


def test_no_difference_says_what_was_excluded(tmp_path: Path) -> None:
    first, *_ = answers(groups(tmp_path, 1.0, 3))
    assert "no difference shown: the time of b is " in first
    assert first.endswith(" of that of a; in the runs, a took 100 ms, 100 ms, 100 ms, and b 100 ms, 100 ms, 100 ms")


def test_batches_of_two_sizes_are_compared_by_samples_per_second(tmp_path: Path) -> None:
    runs = {size: load_run(publish(tmp_path / str(size), "vgg16", manifest("profile", "vgg16"), (
        case_entry("vgg16", 32, "train", batch_size=size), case_tables("train", 32)))) for size in (8, 32)}
    sides = ignoring_differences([Group("small", (runs[8],)), Group("large", (pairs.slowed(runs[32], 2),))])
    differing, answer = answers(sides)
    assert differing == ("No case is equal in all groups: the cases compared differ in batch size (8 in small, "
                         "32 in large).")
    assert answer.startswith("vgg16-32-train-fp32-cpu: large has 2.00× the samples/s of small (95 % interval ")
    assert "for an iteration, large is 2.00× slower than small" in answer
    card, = comparison(sides).cards
    assert (card.headline.text, card.headline.name) == ("2.00×", "the samples/s of small")


@pytest.mark.parametrize(("num_turns", "is_fewest"), [(4, True), (5, False)])
def test_the_fewest_turns_may_take_longer_than_the_limit(num_turns: int, is_fewest: bool) -> None:
    text = turns_sentence([Group("a", (), turns=Turns(num_turns, "time", 2.0))])
    assert text.startswith(f"Stopped after {num_turns} turns")
    assert "the time was up" in text
    assert ("Fewer turns decide nothing" in text) is is_fewest
