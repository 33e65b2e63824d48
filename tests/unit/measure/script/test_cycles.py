"""Which iterations are joined to cycles: from one fetch or rollout to the next."""

from itertools import pairwise

import pytest

from charact.core.timeline import Interval, Iteration
from charact.measure.script.spans.iterations import MOST_STEPS, StepCounter, join_cycles

LOADER, MODEL, OPTIMIZER = 100, 1, 50


def iterations_of(text: str) -> list[Iteration]:
    """Iterations of 100 ns: `F` trains after a fetch, `t` without, `i` infers, `d` infers from a fetched batch."""
    iterations = []
    for index, letter in enumerate(text.replace(" ", "")):
        begin = 100 * index
        intervals = [Interval("data", begin, begin + 10, LOADER)] if letter in "Fd" else []
        intervals.append(Interval("forward", begin + 10, begin + 20, MODEL))
        if letter in "Ft":
            intervals.append(Interval("backward", begin + 20, begin + 30, OPTIMIZER))
        iterations.append(Iteration(begin, begin + 100, intervals, training=letter in "Ft"))
    return iterations


def lengths(text: str) -> list[int]:
    """Number of the given iterations in each of the joined ones."""
    iterations = iterations_of(text)
    joined = join_cycles(iterations)
    assert [part for one in joined for part in one.intervals] == [part for one in iterations for part in one.intervals]
    assert all(before.end_ns == after.start_ns for before, after in pairwise(joined))
    return [(one.end_ns - one.start_ns) // 100 for one in joined]


@pytest.mark.parametrize(("text", "expected"), [
    (4 * "Ft", [2, 2, 2, 2]),
    (4 * "Fttt", [4, 4, 4, 4]),
    (3 * "Ft" + "Fttt" + 4 * "Ft", 3 * [2] + [2, 1, 1] + 4 * [2]),  # nearly always
    ("tt" + 4 * "Ft" + "F", [1, 1] + 4 * [2] + [1]),
    (4 * "Ft" + "ddd" + 4 * "Ft", 4 * [2] + [1, 1, 1] + 4 * [2]),  # a validation
    (4 * "Fit", 4 * [3]),
    (4 * "iitt" + "tttt", [4, 4, 4, 4, 1, 1, 1, 1]),
], ids=["two steps", "four steps", "nearly always", "cut", "validation", "scores", "rollouts"])  # fmt: skip
def test_steps_of_a_fetch_or_a_rollout_are_one(text: str, expected: list[int]) -> None:
    assert lengths(text) == expected


@pytest.mark.parametrize("text", [
    10 * "F", 10 * "t", "F" + 99 * "t", "FtFt", 5 * ("F" + MOST_STEPS * "t"), "FtFttFFtttFtttttFF", "",
    3 * (10 * "t" + "i"), 3 * "it" + "i", 3 * "it", 3 * (4 * "t" + "ddd"), 3 * "iitt" + "i", 6 * "i",
], ids=["plain", "tensors", "one fetch", "few", "epochs", "irregular", "nothing", "evaluations", "evaluations before",
        "predictions", "validations", "evaluations around", "inference"])  # fmt: skip
def test_others_stay_apart(text: str) -> None:
    assert lengths(text) == len(text) * [1]


def ends(text: str) -> str:
    """Return for each step whether it ends an iteration: `|` if it does, `.` if not."""
    counter = StepCounter()
    seen = ""
    for letter in text.replace(" ", ""):
        if letter == "F":
            counter.fetch()
        elif letter == "i":
            counter.infer()
        else:
            seen += "|" if counter.step() else "."
    return seen


@pytest.mark.parametrize(("text", "expected"), [
    (6 * "Fs", "||||||"),
    (6 * "FFFs", "||||||"),
    (6 * "Fss", "||||||" + 3 * ".|"),
    (6 * "iiss", "||||||" + 3 * ".|"),
    ("iiss" + 6 * "Fss", 4 * "||" + 3 * ".|"),
    (6 * "ssi", 12 * "|"),
    (3 * "Fss" + "F" + 6 * "s", "||||||" + ".|||||"),
])  # fmt: skip
def test_the_end_of_an_iteration_is_recognized_as_it_runs(text: str, expected: str) -> None:
    assert ends(text) == expected
