"""Operators on fake tensors against real ones: their results, and what autograd adds in place."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from charact import memory
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import Recorder
from charact.measure.memory_estimate.fake_operators import is_composite, is_in_place, least_references, run

aten = torch.ops.aten


def told(value: Any) -> Any:
    is_tensor = isinstance(value, torch.Tensor)
    return (tuple(value.shape), value.dtype, value.stride()) if is_tensor else value


def norms(dtype: torch.dtype, weights: torch.dtype | None, layout: torch.memory_format, training: bool) -> Any:
    """What a batch norm gives, forward and backward."""
    x = torch.ones(3, 8, 5, 5, dtype=dtype).to(memory_format=layout)
    weight, bias = (None if weights is None else torch.ones(8, dtype=weights) for _ in range(2))
    mean, deviation = (torch.ones(8, dtype=weights) for _ in range(2))
    outputs = run(aten.native_batch_norm.default, (x, weight, bias, mean, deviation, training, 0.1, 1e-5), {})
    saved, wanted = (outputs[1:] if training else (mean, deviation)), [True, weight is not None, weight is not None]
    given = (x, x, weight, mean, deviation, *saved, training, 1e-5, wanted)
    return tree_map(told, [*outputs, *run(aten.native_batch_norm_backward.default, given, {})])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("dtype", "weights"), [
    (torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16),
    (torch.float32, None),
])  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool, dtype: torch.dtype, weights: torch.dtype | None, layout: torch.memory_format
                    ) -> None:
    real = norms(dtype, weights, layout, training)
    with FakeTensorMode():
        assert norms(dtype, weights, layout, training) == real


def test_what_is_written_into_a_tensor_leaves_it_where_it_is() -> None:
    with FakeTensorMode():
        x = torch.empty(4)
        assert run(aten.add_.Tensor, (x, 1), {}) is x
        counted = torch.tensor(2.0)
        run(aten.add_.Tensor, (counted, 1), {})
        assert counted.item() == 3
    real = torch.ones(2)
    assert run(aten.add_.Tensor, (real, 1), {}).tolist() == [2, 2]


@pytest.mark.parametrize(("operator", "in_place", "composite"), [
    (aten.add_.Tensor, True, False), (aten.copy_.default, True, False), (aten.add.Tensor, False, False),
    (aten.t_.default, False, False), (aten.resize_.default, False, False), (aten.linear.default, False, True),
    (aten.silu_backward.default, False, False), (aten._foreach_add_.Scalar, False, False),
], ids=str)  # fmt: skip
def test_kinds_of_operators(operator: Any, in_place: bool, composite: bool) -> None:
    assert is_in_place(operator) == in_place
    assert is_composite(operator) == composite


def backward_operators(loss: Callable[[Tensor], Tensor]) -> Counter[str]:
    """Operators of the backward pass of a loss of fake inputs."""
    with FakeTensorMode():
        recorder = Recorder(RunningLayer(nn.Module()))
        outputs = loss(torch.empty(4, 8, requires_grad=True))
        recorder.begin()
        with recorder:
            outputs.backward()
    return Counter(op.name.removeprefix("aten::") for op in recorder.trace.ops)


@pytest.mark.parametrize(("loss", "operator"), [
    (lambda x: (x.exp().mul(2) + x.cos()).sum(), "add_"),
    (lambda x: x.gather(1, torch.empty(4, 3, dtype=torch.int64)).sum(), "scatter_add_"),
    (lambda x: x.max(1)[0].sum(), "scatter_"),
    (lambda x: x[torch.empty(3, dtype=torch.int64)].sum(), "index_put_"),
    (lambda x: x.index_select(0, torch.empty(3, dtype=torch.int64)).sum(), "index_add_"),
    (lambda x: x.take(torch.empty(3, dtype=torch.int64)).sum(), "put_"),
])
def test_nothing_is_allocated_for_what_is_written_in_place(loss: Callable[[Tensor], Tensor], operator: str) -> None:
    operators = backward_operators(loss)
    assert operators[operator] == 1
    assert operators[operator.removesuffix("_")] == 0


def test_a_gradient_of_which_there_is_a_view_is_not_overwritten() -> None:
    kept = []

    def loss(x: Tensor) -> Tensor:
        uses = x.exp().mul(2), x.cos()
        assert uses[1].grad_fn is not None
        uses[1].grad_fn.register_hook(lambda of_inputs, of_outputs: kept.append(of_inputs[0].view(8, 4)))
        return (uses[0] + uses[1]).sum()

    operators = backward_operators(loss)
    assert len(kept) == 1
    assert (operators["add"], operators["add_"]) == (1, 0)


def test_a_gradient_of_a_selection_is_not_in_place() -> None:
    operators = backward_operators(lambda x: x.clone().index_put((torch.empty(3, dtype=torch.int64),),
                                                                 torch.empty(3, 8)).mul(2).sum())
    assert operators["index_put"] == 1
    assert operators["index_put_"] == 0


def test_the_first_count_may_be_in_inference_mode() -> None:
    def build() -> Callable[[], Tensor]:
        model, inputs = nn.Linear(64, 64), torch.randn(8, 64)
        return lambda: model(inputs)

    counts = least_references()
    for device in ("cpu", "a100-80gb"):
        least_references.cache_clear()
        with torch.inference_mode():
            estimate = memory.estimate(build, device=device)
            assert least_references() == counts
        with torch.no_grad():
            assert estimate.peak_bytes == memory.estimate(build, device=device).peak_bytes


def test_sums_of_real_gradients_stay_right() -> None:
    x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()

    def loss() -> Tensor:
        middle = x * 2
        chosen = middle.max(1, keepdim=True)[0] + middle[torch.tensor([1, 1, 2, 0])]
        return (middle.exp() + middle.sin() + chosen).sum()

    outputs = loss()
    with Recorder(RunningLayer(nn.Module())):
        outputs.backward()
    ours, x.grad = x.grad, None
    loss().backward()
    torch.testing.assert_close(ours, x.grad)
