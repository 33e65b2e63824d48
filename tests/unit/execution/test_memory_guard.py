"""The limit of the host's memory, and CUDA, which reserves more address space than it uses."""

import contextlib
import resource
import sys
from collections.abc import Iterator

import pytest
import torch

from charact.execution import out_of_memory
from charact.execution.out_of_memory import host_memory_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a limit")


@pytest.mark.parametrize(("device", "expected"), [
    (torch.device("cuda", 1), ["cuda:1", "limit"]), (torch.device("cpu"), ["limit"]), (None, ["limit"])])
def test_cuda_starts_before_the_limit(
        monkeypatch: pytest.MonkeyPatch, device: torch.device | None, expected: list[str]) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def limit(num_bytes: int) -> Iterator[None]:
        assert num_bytes >= 0
        events.append("limit")
        yield

    monkeypatch.setattr(out_of_memory, "data_growth_limit", limit)
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device: events.append(str(device)))
    with host_memory_guard(device):
        pass
    assert events == expected


def test_the_limit_ends_with_the_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with host_memory_guard(torch.device("cpu")):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
