"""Timing bricks in training: both passes, what carries no gradient, and shares of an optimizer's step."""

import time
from typing import Any

import pytest
import torch
from support.hand_made_bricks import a_gradient_sum, an_update, pointwise, product
from torch import Tensor

from charact.bricks.aten import BrickFunction, runnable
from charact.bricks.suite.brick import Brick
from charact.bricks.timing import inputs as timing
from charact.bricks.timing.inputs import InputPool
from charact.bricks.timing.training import GradientSumWork, TrainingWork, UpdateWork, backward_start
from charact.core.errors import UserError
from charact.measure.microbench.call_timer import HostClock, Times

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")


class SlowBackward(torch.autograd.Function):
    """Takes 10 ms forward and 30 ms backward."""

    @staticmethod
    def forward(context: Any, one: Tensor) -> Tensor:
        time.sleep(0.01)
        return one.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        time.sleep(0.03)
        return gradients[0]


def calls_of(work: TrainingWork, method: str) -> list[dict[str, Times]]:
    """Times of the calls of a visit, or of one warm call."""
    return work.in_context() if method == "in_context" else [work.warm()]


def work_on(brick: Brick, call: BrickFunction | None = None) -> TrainingWork:
    return TrainingWork(brick, call or runnable(brick), InputPool([brick], CPU), HostClock())


@pytest.mark.parametrize("method", ["in_context", "warm"])
def test_the_passes_are_timed_apart(method: str) -> None:
    work = work_on(product(mode="train"), lambda inputs: (SlowBackward.apply(inputs[0]),))
    for times in calls_of(work, method):
        assert list(times) == ["forward", "backward"]
        (forward_s, _), (backward_s, _) = times.values()
        assert forward_s >= 0.01
        assert backward_s >= 0.03
        assert backward_s > forward_s


@pytest.mark.parametrize("method", ["in_context", "warm"])
def test_gradients_are_made_and_not_added_to(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(timing, "num_new_pages", lambda: 0)
    brick = product(mode="train")
    leaves: list[Tensor] = []
    run = runnable(brick)

    def call(inputs: list[Tensor]) -> tuple[Tensor, ...]:
        assert all(leaf.grad is None for leaf in inputs)
        leaves.extend(inputs)
        return run(inputs)

    work = work_on(brick, call)
    for _ in range(3):
        getattr(work, method)()
    assert len(leaves) == 2 * (9 if method == "in_context" else 4)
    assert all(leaf.grad is not None and float(leaf.grad.abs().max()) > 0 for leaf in leaves)
    products, weights = leaves[0::2], leaves[1::2]
    assert torch.equal(products[0].grad, products[-1].grad)  # type: ignore[arg-type]
    assert torch.equal(weights[0].grad, weights[-1].grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["in_context", "warm"])
def test_what_is_written_in_place_has_a_backward_pass(method: str) -> None:
    work = work_on(pointwise("relu_.default", mode="train"))
    for _ in range(3):
        assert all(set(times) == {"forward", "backward"} for times in calls_of(work, method))


def test_what_carries_no_gradient_has_a_forward_pass_alone() -> None:
    assert [set(times) for times in work_on(pointwise("relu.default")).in_context()] == [{"forward"}, {"forward"}]


def test_a_sum_of_gradients_is_timed_forward() -> None:
    brick = a_gradient_sum(8, 16)
    work = GradientSumWork(brick, runnable(brick), InputPool([brick], CPU), HostClock())
    for times in (*work.in_context(), work.warm()):
        assert list(times) == ["forward"]
        assert times["forward"][0] > 0


class SlowSgd(torch.optim.SGD):
    """Takes 60 ms by itself and 10 ms for each parameter."""

    def step(self, closure: Any = None) -> None:
        parameters = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        time.sleep(0.06 + 0.01 * len(parameters))


def test_a_parameter_has_its_share_of_a_step_less_what_an_empty_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "SGD", SlowSgd)
    monkeypatch.setattr("charact.bricks.timing.training._NUM_STARTS", 3)
    brick = an_update(16, 16)
    work = UpdateWork(brick, InputPool([brick], CPU), HostClock())
    assert work.num_parameters == 4
    assert work.start[0] >= 0.06
    times = [work.warm()["update"] for _ in range(3)]
    assert 0.005 < min(host_s for host_s, _ in times) < 0.02  # a quarter of the whole step is 25 ms
    assert {device_s for _, device_s in times} == {None}


def test_an_update_is_the_optimizers_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("charact.bricks.timing.inputs.num_new_pages", lambda: 0)
    brick = an_update(4, 4, lr=0.5, momentum=0.9)
    optimizer = UpdateWork(brick, InputPool([brick], CPU), HostClock()).stepped()
    for parameter in optimizer.param_groups[0]["params"]:
        torch.testing.assert_close(parameter.detach(), 0.5 * parameter.grad)  # it began as its gradient
    optimizer.step()
    for parameter in optimizer.param_groups[0]["params"]:
        # The second step goes on with the first one's momentum: .5 and .5 * 1.9.
        torch.testing.assert_close(parameter.detach(), (1 - 0.5 - 0.95) * parameter.grad)


@pytest.mark.parametrize(("optimizer", "options"), [
    ("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1, "betas": [0.9, 0.99]}), ("RMSprop", {"lr": 0.1}),
])
def test_optimizers_of_pytorch_are_timed(optimizer: str, options: dict[str, Any]) -> None:
    brick = an_update(64, 64, optimizer=optimizer, **options)
    work = UpdateWork(brick, InputPool([brick], CPU), HostClock())
    assert work.warm()["update"][0] > 0


@pytest.mark.parametrize("name", ["NoSuch", "lr_scheduler", "Tensor"])
def test_an_optimizer_that_is_none_is_refused(name: str) -> None:
    brick = an_update(4, optimizer=name)
    with pytest.raises(UserError, match=f"no optimizer '{name}'"):
        UpdateWork(brick, InputPool([brick], CPU), HostClock())


def test_a_backward_pass_that_computes_nothing_takes_less_than_one_that_does() -> None:
    clock = HostClock()
    work = work_on(product(rows=256, width=256, mode="train"))
    times = min(work.warm()["backward"][0] for _ in range(5))
    assert 0 < backward_start(CPU, clock)[0] < times
