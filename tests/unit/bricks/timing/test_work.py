"""Timed calls of bricks: cache state, memory in place, both passes of training, updates, and counted work."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.hand_made_bricks import a_gradient_sum, an_update, pointwise, product
from torch import Tensor

from charact.bricks.aten import BrickFunction, runnable
from charact.bricks.suite.brick import Brick, BrickInput
from charact.bricks.timing import work as timing
from charact.bricks.timing.inputs import InputPool, WeightPool
from charact.bricks.timing.rounds import counted_work, described
from charact.bricks.timing.work import GradientSumWork, SequenceWork, UpdateWork, backward_start
from charact.core.errors import UserError
from charact.measure.microbench.call_timer import HostClock

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
WEIGHT_BYTES = 16 * 16 * 4


class Watched:
    """A brick's function that records its inputs' places and first values, and may take long."""

    def __init__(self, brick: Brick, seconds: float = 0.0, note: Callable[[], object] = lambda: None) -> None:
        self._call, self._seconds, self._note = runnable(brick), seconds, note
        self.places: list[list[int]] = []
        self.firsts: list[Tensor] = []

    def __call__(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        self._note()
        self.places.append([tensor.data_ptr() for tensor in inputs])
        self.firsts.append(inputs[0].clone())
        time.sleep(self._seconds)
        return self._call(inputs)


def work_on(brick: Brick, call: BrickFunction | None = None, *, training: bool = False) -> SequenceWork:
    return SequenceWork(brick, call or runnable(brick), InputPool([brick], CPU), HostClock(), training=training)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "num_new_pages", lambda: 0)


class TestSequences:
    def test_time_is_that_of_one_call(self) -> None:
        brick = product()
        visit = work_on(brick, Watched(brick, 0.02)).visit()
        assert [times.keys() for times in visit] == [{"forward"}] * 2
        assert all(times["forward"][0] >= 0.02 and times["forward"][1] is None for times in visit)
        assert min(times["forward"][0] for times in visit) < 0.04  # without the untimed calls

    @pytest.mark.usefixtures("steady")
    @pytest.mark.parametrize(("cache_bytes", "large_bytes", "num_calls", "num_weights"), [
        (8 * WEIGHT_BYTES, WEIGHT_BYTES, 10, 1), (8 * WEIGHT_BYTES, WEIGHT_BYTES + 1, 3, 1),
        (8 * WEIGHT_BYTES - 1, WEIGHT_BYTES, 3, 3),
    ])
    def test_weights_are_cached_if_half_the_cache_holds_the_model(
            self, monkeypatch: pytest.MonkeyPatch, cache_bytes: int, large_bytes: int, num_calls: int, num_weights: int
    ) -> None:
        monkeypatch.setattr(timing, "cache_bytes", lambda device: cache_bytes)
        monkeypatch.setattr(timing, "_LARGE_WEIGHTS_BYTES", large_bytes)
        brick = product(context_bytes=4 * WEIGHT_BYTES)
        work = work_on(brick, watched := Watched(brick))
        for _ in range(8):
            work.visit()
        weights = [places[1] for places in watched.places]
        assert len(weights) == 8 * num_calls
        visits = [weights[start:start + num_calls] for start in range(0, len(weights), num_calls)]
        assert {len(set(visit)) for visit in visits} == {num_weights}
        assert len(set(weights)) >= 4

    def test_weights_are_allocated_before_the_first_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timing, "cache_bytes", lambda device: 0)
        events: list[str] = []
        following = WeightPool.next

        def next_weight(pool: WeightPool, of: BrickInput) -> Tensor:
            events.append("weight")
            return following(pool, of)

        monkeypatch.setattr(WeightPool, "next", next_weight)
        brick = product(context_bytes=40_000)
        work_on(brick, Watched(brick, note=lambda: events.append("call"))).visit()
        assert events[:4] == ["weight", "weight", "weight", "call"]
        assert set(events[4:]) == {"call"}

    @pytest.mark.parametrize(("pages", "num_calls"), [((0,), 3), ((8, 9), 3), ((9, 9, 8), 5), ((100,) * 20, 10)])
    def test_calls_are_not_timed_before_their_memory_is_in_place(
            self, monkeypatch: pytest.MonkeyPatch, pages: Sequence[int], num_calls: int) -> None:
        taken = itertools.accumulate(each for call in pages for each in (0, call))
        monkeypatch.setattr(timing, "num_new_pages", lambda: next(taken))
        brick = product()
        assert len(work_on(brick, watched := Watched(brick)).visit()) == 2
        assert len(watched.places) == num_calls

    @pytest.mark.parametrize(("context_bytes", "near_bytes", "training", "num_bytes"), [
        (8 * WEIGHT_BYTES, WEIGHT_BYTES, False, 4 * WEIGHT_BYTES),  # four times the near caches
        (4 * WEIGHT_BYTES, 100 * WEIGHT_BYTES, False, 3 * WEIGHT_BYTES),  # the model's other layers
        (4 * WEIGHT_BYTES, 100 * WEIGHT_BYTES, True, 11 * WEIGHT_BYTES),  # with gradients and optimizer state
        (WEIGHT_BYTES, 100 * WEIGHT_BYTES, False, 0), (8 * WEIGHT_BYTES, 0, False, 0),
    ])
    def test_other_memory_is_that_of_the_model_up_to_a_multiple_of_near_caches(
            self, monkeypatch: pytest.MonkeyPatch, context_bytes: int, near_bytes: int, training: bool, num_bytes: int
    ) -> None:
        monkeypatch.setattr(timing, "near_cache_bytes", lambda device: near_bytes)
        work = work_on(product(context_bytes=context_bytes), training=training)
        work._evict()
        assert work.evicted_bytes == num_bytes

    @pytest.mark.parametrize(("size", "infers", "trains"), [(16, True, True), (17, True, False), (51, False, False)])
    def test_training_leaves_less_of_the_cache(self, monkeypatch: pytest.MonkeyPatch, size: int, infers: bool,
                                               trains: bool) -> None:
        monkeypatch.setattr(timing, "cache_bytes", lambda device: 100)
        brick = product(context_bytes=size)
        assert [work_on(brick, training=mode).stays_in_cache for mode in (False, True)] == [infers, trains]

    @pytest.mark.parametrize("brick", [product(context_bytes=4 * WEIGHT_BYTES), pointwise("relu.default")])
    @pytest.mark.parametrize("last_cache_bytes", [0, 100 * WEIGHT_BYTES])
    def test_near_caches_are_overwritten_before_timed_calls_only(
            self, monkeypatch: pytest.MonkeyPatch, brick: Brick, last_cache_bytes: int) -> None:
        monkeypatch.setattr(timing, "cache_bytes", lambda device: last_cache_bytes)
        events: list[str] = []
        monkeypatch.setattr(SequenceWork, "_evict", lambda self: events.append("read"))
        work_on(brick, Watched(brick, note=lambda: events.append("call"))).visit()
        assert events[-5:] == ["call", "read", "call", "read", "call"]
        assert set(events[:-5]) <= {"call"}

    def test_written_inputs_are_restored(self) -> None:
        brick = pointwise("relu_.default")
        work = work_on(brick, watched := Watched(brick))
        for _ in range(3):
            work.visit()
        assert all(torch.equal(first, watched.firsts[0]) for first in watched.firsts)
        assert float(watched.firsts[0].min()) == -1.0


class SlowBackward(torch.autograd.Function):
    """Takes 10 ms forward and 30 ms backward."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        time.sleep(0.01)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        time.sleep(0.03)
        return gradients[0]


class TestTraining:
    def test_the_passes_are_timed_apart(self) -> None:
        work = work_on(product(mode="train"), lambda inputs: (SlowBackward.apply(inputs[0]),), training=True)
        for times in work.visit():
            assert list(times) == ["forward", "backward"]
            assert 0.01 <= times["forward"][0] < times["backward"][0]
            assert times["backward"][0] >= 0.03

    @pytest.mark.usefixtures("steady")
    def test_each_call_has_its_own_gradients(self) -> None:
        brick = product(mode="train")
        leaves: list[Tensor] = []
        run = runnable(brick)

        def call(inputs: list[Tensor]) -> tuple[Tensor, ...]:
            assert all(leaf.grad is None for leaf in inputs)
            leaves.extend(inputs)
            return run(inputs)

        work = work_on(brick, call, training=True)
        for _ in range(3):
            work.visit()
        assert len(leaves) == 2 * 9
        assert all(leaf.grad is not None and float(leaf.grad.abs().max()) > 0 for leaf in leaves)
        for same in (leaves[0::2], leaves[1::2]):
            assert torch.equal(same[0].grad, same[-1].grad)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("brick", "phases"), [
        (pointwise("relu_.default", mode="train"), {"forward", "backward"}), (pointwise("relu.default"), {"forward"}),
    ])
    def test_a_backward_pass_needs_a_gradient(self, brick: Brick, phases: set[str]) -> None:
        work = work_on(brick, training=True)
        assert [set(times) for _ in range(3) for times in work.visit()] == [phases] * 6

    def test_a_gradient_sum_is_timed_forward(self) -> None:
        brick = a_gradient_sum(8, 16)
        (times,) = GradientSumWork(brick, runnable(brick), InputPool([brick], CPU), HostClock()).visit()
        assert list(times) == ["forward"]
        assert times["forward"][0] > 0

    def test_a_trivial_backward_pass_is_shorter_than_a_real_one(self) -> None:
        work = work_on(product(rows=256, width=256, mode="train"), training=True)
        backward_s = min(times["backward"][0] for _ in range(3) for times in work.visit())
        assert 0 < backward_start(CPU, HostClock())[0] < backward_s


class SlowSgd(torch.optim.SGD):
    """Takes 60 ms by itself and 10 ms for each parameter."""

    def step(self, closure: Any = None) -> None:
        parameters = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        time.sleep(0.06 + 0.01 * len(parameters))


def update_of(brick: Brick) -> UpdateWork:
    return UpdateWork(brick, InputPool([brick], CPU), HostClock())


class TestUpdates:
    def test_a_parameter_has_its_share_of_a_step_without_the_empty_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.optim, "SGD", SlowSgd)
        monkeypatch.setattr(timing, "_NUM_STARTS", 3)
        work = update_of(an_update(16, 16))
        assert work.num_calls == 4
        assert work.start[0] >= 0.06
        times = [work.visit()[0]["update"] for _ in range(3)]
        assert 0.005 < min(host_s for host_s, _ in times) < 0.02  # a quarter of the whole step is 25 ms
        assert {device_s for _, device_s in times} == {None}

    @pytest.mark.usefixtures("steady")
    def test_an_update_is_the_optimizers_step(self) -> None:
        optimizer = update_of(an_update(4, 4, lr=0.5, momentum=0.9)).stepped()
        for parameter in optimizer.param_groups[0]["params"]:
            torch.testing.assert_close(parameter.detach(), 0.5 * parameter.grad)  # it began as its gradient
        optimizer.step()
        for parameter in optimizer.param_groups[0]["params"]:
            # The second step continues with the first one's momentum: .5 and .5 * 1.9.
            torch.testing.assert_close(parameter.detach(), (1 - 0.5 - 0.95) * parameter.grad)

    @pytest.mark.parametrize(("optimizer", "options"), [
        ("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1, "betas": [0.9, 0.99]}), ("RMSprop", {"lr": 0.1}),
    ])
    def test_optimizers_of_pytorch_are_timed(self, optimizer: str, options: dict[str, Any]) -> None:
        assert update_of(an_update(64, 64, optimizer=optimizer, **options)).visit()[0]["update"][0] > 0

    @pytest.mark.parametrize("name", ["NoSuch", "lr_scheduler", "Tensor"])
    def test_other_names_of_torch_optim_are_refused(self, name: str) -> None:
        with pytest.raises(UserError, match=f"no optimizer '{name}'"):
            update_of(an_update(4, optimizer=name))


ROWS, WIDTH = 64, 32
ACTIVATION, WEIGHT = 4 * ROWS * WIDTH, 4 * WIDTH * WIDTH
FLOP = 2 * ROWS * WIDTH * WIDTH


@pytest.mark.parametrize(("brick", "training", "flop", "num_bytes"), [
    (product(ROWS, WIDTH), False, FLOP, 2 * ACTIVATION + WEIGHT),
    (pointwise("relu_.default", ROWS, WIDTH), False, None, None),
    (product(ROWS, WIDTH, mode="train"), True, 3 * FLOP, 3 * (2 * ACTIVATION + WEIGHT)),
    (a_gradient_sum(ROWS, WIDTH), True, None, 3 * ACTIVATION),
])
def test_work_is_counted_with_the_backward_pass(brick: Brick, training: bool, flop: int | None, num_bytes: int | None
                                                ) -> None:
    work, uncounted = counted_work(brick, runnable(brick), InputPool([brick], CPU), training=training)
    assert (work["flop"], uncounted) == (flop, set())
    assert num_bytes is None or work["bytes"] == num_bytes


def test_columns_that_need_no_run() -> None:
    brick = product(ROWS, WIDTH)
    assert described(brick) == {"brick": brick.id, "kind": "sequence", "num_layers": 1, "layer_types": '["mm"]',
                                "input_shapes": "[[64, 32], [32, 32]]", "literals": "[]", "weights_bytes": WEIGHT}
