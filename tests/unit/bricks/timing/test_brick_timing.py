"""Timing bricks in inference: which weights a call finds in the cache, and what it costs beside."""

import itertools
import time
from collections.abc import Sequence
from statistics import median

import pytest
import torch
from support.hand_made_bricks import pointwise, product
from torch import Tensor

from charact.bricks.aten import runnable
from charact.bricks.suite.brick import Brick, BrickInput
from charact.bricks.timing import inputs as timing
from charact.bricks.timing.inputs import CacheEvictor, InferenceWork, InputPool, WeightPool, stays_in_cache
from charact.measure.microbench.call_timer import HostClock

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
WEIGHT_BYTES = 16 * 16 * 4


class Watched:
    """A brick's function that keeps where its inputs were, and may take long."""

    def __init__(self, brick: Brick, seconds: float = 0.0) -> None:
        self._call, self._seconds = runnable(brick), seconds
        self.places: list[list[int]] = []
        self.firsts: list[Tensor] = []

    def __call__(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        self.places.append([tensor.data_ptr() for tensor in inputs])
        self.firsts.append(inputs[0].clone())
        time.sleep(self._seconds)
        return self._call(inputs)


def work_on(brick: Brick, call: Watched) -> InferenceWork:
    return InferenceWork(brick, call, InputPool([brick], CPU), HostClock())


def test_time_is_that_of_one_call() -> None:
    brick = product()
    slow = work_on(brick, Watched(brick, 0.02))
    in_context = slow.in_context()
    assert len(in_context) == 2
    visits = [*in_context, slow.warm()]
    for times in visits:
        assert times.keys() == {"forward"}
        assert times["forward"][0] >= 0.02
        assert times["forward"][1] is None
    assert min(times["forward"][0] for times in visits) < 0.04  # the calls before it are not part of it


@pytest.mark.parametrize(("settling_bytes", "num_untimed"), [(WEIGHT_BYTES, 8), (WEIGHT_BYTES + 1, 1)])
def test_weights_of_a_small_model_are_in_the_cache(
        monkeypatch: pytest.MonkeyPatch, settling_bytes: int, num_untimed: int) -> None:
    monkeypatch.setattr(timing, "num_new_pages", lambda: 0)
    monkeypatch.setattr(timing, "cache_bytes", lambda device: 100 * WEIGHT_BYTES)
    monkeypatch.setattr(timing, "_LARGE_WEIGHTS_BYTES", settling_bytes)
    brick = product(context_bytes=4 * WEIGHT_BYTES)
    watched = Watched(brick)
    work = work_on(brick, watched)
    for _ in range(8):
        work.in_context()
    weights = [places[1] for places in watched.places]
    num_calls = num_untimed + 2
    assert len(weights) == 8 * num_calls
    visits = [weights[start:start + num_calls] for start in range(0, len(weights), num_calls)]
    assert all(len(set(visit)) == 1 for visit in visits)
    assert len({visit[0] for visit in visits[-4:]}) == 4


def test_weights_of_a_large_model_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "num_new_pages", lambda: 0)
    monkeypatch.setattr(timing, "cache_bytes", lambda device: 4 * WEIGHT_BYTES)
    brick = product(context_bytes=4 * WEIGHT_BYTES)
    watched = Watched(brick)
    work = work_on(brick, watched)
    for _ in range(4):
        work.in_context()
    weights = [places[1] for places in watched.places]
    assert len(weights) == 12  # one untimed and two timed ones each
    weights = weights[-8:]
    assert all(len(set(weights[start:start + 4])) == 4 for start in range(5))


def test_weights_are_there_before_the_first_call_has_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "cache_bytes", lambda device: 0)
    events: list[str] = []
    found = WeightPool.next

    def next_of_belt(belts: WeightPool, of: BrickInput) -> Tensor:
        events.append("weight")
        return found(belts, of)

    monkeypatch.setattr(WeightPool, "next", next_of_belt)
    brick = product(context_bytes=40_000)
    call = runnable(brick)

    def noted(inputs: list[Tensor]) -> tuple[Tensor, ...]:
        events.append("call")
        return call(inputs)

    InferenceWork(brick, noted, InputPool([brick], CPU), HostClock()).in_context()
    assert events[:4] == ["weight", "weight", "weight", "call"]
    assert set(events[4:]) == {"call"}


@pytest.mark.parametrize(("pages", "num_calls"), [((0,), 3), ((100, 100, 0), 5), ((100,) * 20, 10)])
def test_calls_are_not_timed_before_their_memory_is_in_place(
        monkeypatch: pytest.MonkeyPatch, pages: Sequence[int], num_calls: int) -> None:
    taken = itertools.accumulate(each for call in pages for each in (0, call))
    monkeypatch.setattr(timing, "num_new_pages", lambda: next(taken))
    brick = product()
    watched = Watched(brick)
    assert len(work_on(brick, watched).in_context()) == 2
    assert len(watched.places) == num_calls


def test_a_training_leaves_the_cache_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cache of 100 bytes half is for weights; gradients and an optimizer's state are as large."""
    monkeypatch.setattr(timing, "cache_bytes", lambda device: 100)
    stays = [(stays_in_cache(product(context_bytes=size), CPU), stays_in_cache(product(context_bytes=size), CPU,
                                                                               training=True)) for size in (16, 17, 51)]
    assert stays == [(True, True), (True, False), (False, False)]


@pytest.mark.parametrize(("context_bytes", "near_bytes", "training", "num_bytes"), [
    (8 * WEIGHT_BYTES, WEIGHT_BYTES, False, 4 * WEIGHT_BYTES),  # four times what near caches hold
    (4 * WEIGHT_BYTES, 100 * WEIGHT_BYTES, False, 3 * WEIGHT_BYTES),  # a model's other layers
    (4 * WEIGHT_BYTES, 100 * WEIGHT_BYTES, True, 11 * WEIGHT_BYTES),
    (WEIGHT_BYTES, 100 * WEIGHT_BYTES, False, 0),
    (8 * WEIGHT_BYTES, 0, False, 0),
])
def test_what_a_model_reads_between_two_layers(
        monkeypatch: pytest.MonkeyPatch, context_bytes: int, near_bytes: int, training: bool, num_bytes: int) -> None:
    monkeypatch.setattr(timing, "near_cache_bytes", lambda device: near_bytes)
    between = CacheEvictor(product(context_bytes=context_bytes), CPU, training=training)
    between.evict()
    assert between.num_bytes == num_bytes


@pytest.mark.parametrize("brick", [product(context_bytes=4 * WEIGHT_BYTES), pointwise("relu.default")])
@pytest.mark.parametrize("last_cache_bytes", [0, 100 * WEIGHT_BYTES])
def test_near_caches_are_cleared_before_timed_calls(
        monkeypatch: pytest.MonkeyPatch, brick: Brick, last_cache_bytes: int) -> None:
    """With weights or without, that stay in the last cache or not; nothing is between untimed calls."""
    monkeypatch.setattr(timing, "cache_bytes", lambda device: last_cache_bytes)
    events: list[str] = []
    monkeypatch.setattr(CacheEvictor, "evict", lambda self: events.append("read"))

    class Noted(Watched):
        def __call__(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
            events.append("call")
            return super().__call__(inputs)

    work_on(brick, Noted(brick)).in_context()
    assert events[-5:] == ["call", "read", "call", "read", "call"]
    assert set(events[:-5]) <= {"call"}


def test_warm_calls_have_the_same_inputs() -> None:
    brick = product(context_bytes=4 * WEIGHT_BYTES)
    watched = Watched(brick)
    work = work_on(brick, watched)
    for _ in range(3):
        work.warm()
    assert len(watched.places) == 4  # one untimed
    assert len(set(map(tuple, watched.places))) == 1
    work.release()
    work.warm()
    assert len(watched.places) == 6  # what was let go is written anew, and needs an untimed call


def test_what_is_written_in_place_is_restored() -> None:
    for method in ("in_context", "warm"):
        brick = pointwise("relu_.default")
        watched = Watched(brick)
        work = work_on(brick, watched)
        for _ in range(3):
            getattr(work, method)()
        assert all(torch.equal(first, watched.firsts[0]) for first in watched.firsts)
        assert float(watched.firsts[0].min()) == -1.0


@pytest.mark.usefixtures("one_thread")
def test_weights_from_memory_are_slower_than_warm_ones() -> None:
    """A product by few rows reads a matrix of 4 MB once: from memory, or from where it was just before."""
    brick = product(rows=1, width=1024, context_bytes=2**30)
    work = work_on(brick, Watched(brick))
    ratios = []
    for _ in range(5):
        away = median(times["forward"][0] for _ in range(15) for times in work.in_context())
        warm = median(work.warm()["forward"][0] for _ in range(30))
        ratios.append(away / warm)
    assert median(ratios) > 1.1
