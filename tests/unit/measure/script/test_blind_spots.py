"""What the record says that it could not see."""

import pytest

from charact.measure.script.spans.blind_spots import (
    AFTER_LOSS,
    BY_HAND,
    FULL,
    MIXED,
    NO_FETCH,
    NO_LOADER,
    WHOLE,
    blind_spots,
    is_compiled_whole,
)
from charact.measure.script.spans.iterations import Interval, Iteration
from charact.measure.script.spans.recorder import Kind, Slice

MODEL, NONE = 1, 0


def iteration(*phases: tuple[str, int], training: bool = True) -> Iteration:
    """An iteration of 100 ns with phases of 10 ns, each with its owner."""
    intervals = [Interval(phase, owner, 10 * place, 10 * place + 10) for place, (phase, owner) in enumerate(phases)]
    return Iteration(training, 0, 100, intervals)


PLAIN = [("data", NONE), ("forward", MODEL), ("backward", NONE), ("update", NONE)]
UNSEEN = [("data", NONE), ("forward", NONE), ("backward", NONE), ("update", NONE)]
FULLY = [("forward", MODEL)] * 5 + [("backward", NONE)] * 4 + [("update", NONE)]


@pytest.mark.parametrize(("phases", "compiled_whole", "spots"), [
    (PLAIN, False, []),
    (PLAIN, True, []),  # such as a loss of its own that was compiled
    (UNSEEN, True, [WHOLE]),
    (UNSEEN, False, []),
    (PLAIN[1:3], False, [BY_HAND]),
    ([("backward", NONE)], False, [MIXED]),
    ([("loss", NONE), ("backward", NONE)], True, [MIXED]),
    (PLAIN[1:], False, [NO_LOADER]),
    (FULLY, False, []),  # where nothing is left, no batch is made in it
])  # fmt: skip
def test_of_a_training(phases: list[tuple[str, int]], compiled_whole: bool, spots: list[str]) -> None:
    iterations = [iteration(*phases)] * 3
    assert blind_spots(iterations, compiled_whole=compiled_whole, full=False, any_loader=False) == spots


def test_a_loader_that_was_used_elsewhere() -> None:
    assert blind_spots([iteration(*PLAIN[1:])], compiled_whole=False, full=False, any_loader=True) == [NO_FETCH]


@pytest.mark.parametrize(("gap_ns", "said"), [(2, False), (3, True)])
def test_work_after_the_loss(gap_ns: int, said: bool) -> None:
    ends = [("data", 0, 40), ("forward", 40, 50), ("loss", 50, 60), ("backward", 60 + gap_ns, 80), ("update", 80, 100)]
    one = Iteration(True, 0, 100, [Interval(phase, NONE, begin, end) for phase, begin, end in ends])
    spots = blind_spots([one], compiled_whole=False, full=False, any_loader=True)
    assert spots == ([AFTER_LOSS.format("3.0 %")] if said else [])


def test_of_predictions_only_that_there_was_no_room_for_more() -> None:
    predictions = [iteration(("forward", NONE), training=False)]
    assert blind_spots(predictions, compiled_whole=True, full=True, any_loader=False) == [FULL]


def compiled(*, after: Slice | None) -> bool:
    before = [] if after is None else [after]
    return is_compiled_whole([*before, Slice(Kind.COMPILE, 10, 20, NONE, ends=True)])


def test_what_is_compiled_in_a_span_is_not_a_function_as_a_whole() -> None:
    assert not compiled(after=Slice(Kind.FORWARD, 0, 10, MODEL, ends=False))
    assert compiled(after=Slice(Kind.FORWARD, 0, 10, MODEL, ends=True))
    assert compiled(after=None)
