"""The all-reduce problem: its text, its bytes, what it needs, and the sum that it is checked against."""

import pytest
import torch

from charact.core.bus_bandwidth import bus_factor
from charact.core.errors import UserError
from charact.ops.kinds import all_reduce
from charact.ops.kinds.all_reduce import MOST_RANKS

KIND, CPU = all_reduce.KIND, torch.device("cpu")


@pytest.mark.parametrize(("sizes", "text", "numbers", "ranks"), [
    ("1000", "all_reduce:1000", 1000, 1), ("1000x2", "all_reduce:1000x2", 1000, 2),
    (f"8x{MOST_RANKS}", f"all_reduce:8x{MOST_RANKS}", 8, MOST_RANKS)])
def test_problems(sizes: str, text: str, numbers: int, ranks: int) -> None:
    problem = KIND.parse(sizes)
    assert (problem.text, problem.sizes) == (text, {"numbers": numbers, "ranks": ranks})
    assert KIND.num_bytes(problem, "forward", 2) == pytest.approx(bus_factor("all_reduce", ranks) * 2 * numbers)
    more = all_reduce.with_ranks(problem, 3)
    assert (more.text, more.sizes["ranks"]) == (("all_reduce:1000x3", 3) if ranks == 1 else (text, ranks))


@pytest.mark.parametrize("sizes", ["8x1", f"8x{MOST_RANKS + 1}", "8x2x2", "x"])
def test_sizes_that_are_none(sizes: str) -> None:
    with pytest.raises(UserError, match="--problem"):
        KIND.parse(sizes)


def test_it_needs_ranks_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "use --ranks 2" in str(KIND.refusal(KIND.parse("8"), "fp32", CPU))
    assert KIND.refusal(KIND.parse("8x3"), "fp32", CPU) is None
    cuda = torch.device("cuda", 0)
    assert "needs as many CUDA devices, this machine has 2" in str(KIND.refusal(KIND.parse("8x3"), "fp32", cuda))
    assert "needs as many CUDA devices" not in str(KIND.refusal(KIND.parse("8x2"), "fp32", cuda))


def test_the_reference_is_the_sum_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = KIND.prepare(KIND.parse("50x3"), "forward", "fp32", CPU)
    inputs = []
    for rank in range(3):
        monkeypatch.setattr(all_reduce.dist, "get_rank", lambda rank=rank: rank)
        inputs += prepared.inputs()
    assert not torch.equal(inputs[0], inputs[1])
    torch.testing.assert_close(prepared.reference(inputs[0]), sum(each.double() for each in inputs))
    monkeypatch.setattr(all_reduce.dist, "all_reduce", lambda numbers: numbers.mul_(2))
    torch.testing.assert_close(prepared.call(inputs[1].clone()), 2 * inputs[1])
