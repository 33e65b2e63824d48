"""What the record says that it could not see."""

from typing import Any

import pytest

from charact.core.timeline import Interval, Iteration
from charact.measure.script.spans.blind_spots import (
    AT_END,
    BETWEEN,
    BY_HAND,
    FULL,
    MIXED,
    NAME_IT,
    NO_FETCH,
    NO_LOADER,
    PREDICTED,
    SCATTERED,
    WHOLE,
    blind_spots,
)
from charact.measure.script.spans.event_log_reader import SliceTotals
from charact.measure.script.spans.frame_samples import Samples
from charact.measure.script.spans.recorder import Kind, Slice

MODEL, NONE = 1, 0


def spots_of(iterations: list[Iteration], *, compiled_whole: bool = False, full: bool = False,
             any_loader: bool = True, **more: Any) -> list[str]:
    return blind_spots(iterations, compiled_whole=compiled_whole, full=full, any_loader=any_loader, **more)


def iteration(*phases: tuple[str, int], training: bool = True) -> Iteration:
    """An iteration with phases of 10 ns, each with its owner; of 100 ns if it fetches nothing."""
    intervals = [Interval(phase, 10 * place, 10 * place + 10, owner) for place, (phase, owner) in enumerate(phases)]
    return Iteration(0, 10 * len(phases) if ("data", NONE) in phases else 100, intervals, training=training)


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
    assert spots_of(iterations, compiled_whole=compiled_whole, any_loader=False) == spots


def test_a_loader_that_was_used_elsewhere() -> None:
    assert spots_of([iteration(*PLAIN[1:])]) == [NO_FETCH]


@pytest.mark.parametrize(("gap_ns", "said"), [(2, False), (3, True)])
@pytest.mark.parametrize("place", range(4))
def test_work_between_phases(place: int, gap_ns: int, said: bool) -> None:
    names = ("data", "forward", "loss", "backward", "update")
    intervals = [Interval(name, 20 * index + (gap_ns if index == place + 1 else 0), 20 * index + 20, NONE)
                 for index, name in enumerate(names)]
    spots = spots_of([Iteration(0, 100, intervals)])
    assert spots == ([f"{BETWEEN.format('3.0 %', names[place], names[place + 1])}: {NAME_IT}"] if said else [])


@pytest.mark.parametrize(("gap_ns", "said"), [(2, False), (3, True)])
def test_work_at_the_end(gap_ns: int, said: bool) -> None:
    intervals = [Interval("data", 0, 50, NONE), Interval("update", 50, 100 - gap_ns, NONE)]
    spots = spots_of([Iteration(0, 100, intervals)])
    assert spots == ([f"{AT_END.format('3.0 %', 'update')}: {NAME_IT}"] if said else [])


@pytest.mark.parametrize(("device_begin_ns", "said"), [(30, False), (50, True)])
def test_waiting_for_a_device_that_computes_is_no_gap(device_begin_ns: int, said: bool) -> None:
    """The host launches an update until 20 ns and waits until 90 ns, to print a loss."""
    intervals = [Interval("update", 0, 20, NONE, start_device_ns=0, end_device_ns=30),
                 Interval("data", 90, 100, NONE, start_device_ns=device_begin_ns, end_device_ns=100)]
    spots = spots_of([Iteration(0, 100, intervals, 0, 100)])
    assert spots == ([f"{BETWEEN.format('20.0 %', 'update', 'data')}: {NAME_IT}"] if said else [])


def test_work_at_the_end_may_create_the_next_batch_unless_its_line_is_known() -> None:
    iterations = [Iteration(begin, begin + 100, [Interval("forward", begin, begin + 50, MODEL)])
                  for begin in range(0, 1000, 100)]
    assert spots_of(iterations, samples=Samples()) == [BY_HAND]
    samples = Samples([{"places": [["a.py:1", "f", None]],
                        "samples": [[100 * number + 70, 0] for number in range(5)]}])
    assert spots_of(iterations, samples=samples) == [
        BY_HAND, f"{AT_END.format('50.0 %', 'forward')}: most of it is in a.py:1 in f"]


def test_much_time_in_many_places_is_said_together() -> None:
    names = ("data", "forward", "loss", "backward", "update", "data", "backward")
    for gap_ns, said in ((1, True), (0, False)):
        intervals = [Interval(name, 100 * index, 100 * index + 100 - 10 * gap_ns, NONE)
                     for index, name in enumerate(names)]
        spots = spots_of([Iteration(0, 700, intervals)])
        assert spots == ([f"{SCATTERED.format('10.0 %')}: {NAME_IT}"] if said else [])


@pytest.mark.parametrize(("num_samples", "advice"), [
    (5, "most of it is in a.py:1 in f"), (4, "name it with a Profiler's phase()")])
def test_work_between_phases_is_named_where_it_was_sampled(num_samples: int, advice: str) -> None:
    iterations = [Iteration(begin, begin + 100, [Interval("data", begin, begin + 40, NONE),
                                                       Interval("forward", begin + 50, begin + 100, MODEL)])
                  for begin in range(0, 1000, 100)]
    samples = Samples([{
        "places": [["a.py:1", "f", None], ["b.py:2", "g", None]],
        "samples": [*([100 * number + 49, 0] for number in range(num_samples)), *([[39, 1]] * 20)]}])
    spots = spots_of(iterations, samples=samples)
    assert spots == [f"10.0 % of a typical iteration lies between data and forward, and counts as other: {advice}"]


def test_work_between_phases_that_is_rare_is_not_called_typical() -> None:
    usual = Iteration(0, 100, [Interval("data", 0, 50, NONE), Interval("forward", 50, 100, MODEL)])
    late = Iteration(100, 1000, [Interval("data", 100, 150, NONE), Interval("forward", 950, 1000, MODEL)])
    for iterations, said in (([usual] * 3, None), ([usual, usual, late], SCATTERED.format("72.7 %")),
                             ([usual, late, late], BETWEEN.format("88.9 %", "data", "forward"))):
        spots = spots_of(iterations)
        assert spots == ([f"{said}: {NAME_IT}"] if said else [])


@pytest.mark.parametrize(("num_after_predictions", "phase", "said"), [
    (3, "forward", True), (2, "forward", True), (1, "forward", False), (3, "data", False)])
def test_predictions_from_which_the_training_may_learn(num_after_predictions: int, phase: str, said: bool) -> None:
    trainings = [Iteration(begin, begin + 50, [Interval("forward", begin, begin + 50, MODEL)])
                 for begin in (50, 150, 250)]
    predictions = [Iteration(one.start_ns - 50, one.start_ns, [Interval(phase, 0, 1, MODEL)], training=False)
                   for one in trainings[:num_after_predictions]]
    spots = spots_of(trainings, inferences=predictions)
    assert spots == ([PREDICTED] if said else [])


def test_of_predictions_only_that_there_was_no_room_for_more() -> None:
    predictions = [iteration(("forward", NONE), training=False)]
    assert spots_of(predictions, compiled_whole=True, full=True, any_loader=False) == [FULL]


@pytest.mark.parametrize(("before", "is_whole"), [([], True), ([True], True), ([False], False), ([False, True], True)])
def test_what_is_compiled_in_a_span_is_not_a_function_as_a_whole(before: list[bool], is_whole: bool) -> None:
    slices = [Slice(Kind.FORWARD, 0, 10, MODEL, ends=ends) for ends in before]
    assert SliceTotals([*slices, Slice(Kind.COMPILE, 10, 20, NONE, ends=True)]).compiled_whole is is_whole
