"""Whether a thread waits, as another one sees it."""

import threading
import time
from collections.abc import Callable

import pytest
import torch

from charact.measure.script.spans.stack_sampler import ThreadClock

pytestmark = pytest.mark.clock


def sleep() -> None:
    time.sleep(0.02)


def compute_in_python() -> None:
    sum(range(10_000))


def multiply(matrix: torch.Tensor = torch.ones(512, 512)) -> None:  # noqa: B008
    matrix @ matrix


def waiting_frac(work: Callable[[], None]) -> float:
    """Median share in which this thread waits, seen by another one while this one works."""
    clock, shares = ThreadClock(), list[float]()

    def watch() -> None:
        for _ in range(9):
            before = clock.read()
            time.sleep(0.03)
            after = clock.read()
            assert before is not None
            assert after is not None
            shares.append(clock.waiting_frac(before, after))

    watcher = threading.Thread(target=watch)
    watcher.start()
    while watcher.is_alive():
        work()
    return sorted(shares)[len(shares) // 2]


def test_a_thread_that_sleeps_waits() -> None:
    assert waiting_frac(sleep) > 0.7


@pytest.mark.parametrize("work", [compute_in_python, multiply])
def test_a_thread_that_computes_does_not_wait(work: Callable[[], None]) -> None:
    """Nor does it while other programs keep the cores busy, or in an operator of several threads."""
    assert waiting_frac(work) < 0.3
