"""Results of operators on fake tensors that are told without PyTorch, against those of real tensors."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from charact.measure.memory_estimate.fake_results import is_composite, is_in_place, run

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
