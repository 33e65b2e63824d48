"""Attention: work by hand and by PyTorch's counter, and its result in parts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from charact.measure.microbench.operation_timing import result_error
from charact.ops import parse_problem
from charact.ops.kinds import attention
from charact.ops.kinds.attention import KIND

CPU = torch.device("cpu")


def test_work_by_hand() -> None:
    problem = parse_problem("attention:2x3x4x5x8")
    assert KIND.flop(problem, "forward") == 2 * 2 * (2 * 3) * (4 * 5) * 8
    assert KIND.flop(problem, "backward_input") == 5 * 2 * (2 * 3) * (4 * 5) * 8
    assert KIND.num_bytes(problem, "forward", 2) == 2 * (2 * 3) * (4 + 5 + 5 + 4) * 8
    assert KIND.num_bytes(problem, "backward_input", 2) == 2 * (2 * 3) * (4 * 4 + 4 * 5) * 8
    assert KIND.published_flop(problem, "forward") is None


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (4, 9), (9, 4), (1, 7), (7, 1)])
def test_masked_scores_are_no_work(queries: int, keys: int) -> None:
    problem = parse_problem(f"attention:1x1x{queries}x{keys}x8:causal")
    seen = sum(key <= query for query in range(queries) for key in range(keys))
    assert KIND.flop(problem, "forward") == 2 * 2 * seen * 8
    everything = KIND.published_flop(problem, "backward_input")
    assert everything is not None
    assert everything[0] == 5 * 2 * queries * keys * 8


@pytest.mark.parametrize("causal", ["", ":causal"])
def test_full_flop_are_those_that_pytorch_counts(causal: str) -> None:
    problem = parse_problem(f"attention:2x3x16x16x8{causal}")
    published = KIND.published_flop(problem, "forward")
    prepared = KIND.prepare(problem, "forward", "fp32", CPU)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        prepared.call(*prepared.inputs())
    assert counter.get_total_flops() == (published[0] if published else KIND.flop(problem, "forward"))


@pytest.mark.parametrize("direction", ["forward", "backward_input"])
@pytest.mark.parametrize("causal", ["", ":causal"])
def test_the_first_heads_are_compared_some_queries_at_a_time(
        monkeypatch: pytest.MonkeyPatch, causal: str, direction: str) -> None:
    monkeypatch.setattr(attention, "_CHECKED_SCORES", 50)  # below the 12 × 9 of a head
    prepared = KIND.prepare(parse_problem(f"attention:2x3x12x9x8{causal}"), direction, "fp32", CPU)
    inputs = prepared.inputs()
    assert prepared.reference(*inputs).numel() == (12 * 8 if direction == "forward" else (12 + 9 + 9) * 8)
    assert result_error(prepared, inputs) < prepared.tolerance


def test_the_mask_is_checked() -> None:
    with_mask, without = (KIND.prepare(parse_problem(f"attention:1x1x8x8x4{causal}"), "forward", "fp32", CPU)
                          for causal in (":causal", ""))
    inputs = with_mask.inputs()
    difference = with_mask.reference(*inputs) - without.compared(without.call(*inputs))
    assert float(difference.abs().max()) > 0.1
