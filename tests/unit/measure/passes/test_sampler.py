"""Reading sources along with a program: samples and their phases, and each way in which a source fails."""

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.sources import Made, break_down, fine, refuse

from charact.measure.counters._support.protocol import Unavailable
from charact.measure.passes import counters as sampler
from charact.measure.passes.counters import Sampler
from charact.record.schema import column_names

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")
OK = {"status": "ok", "reason": None, "remedy": None, "missing": {"num_lost": "not on this device"}}


def sampled(*sources: Any, seconds: float = 0.05, device: torch.device = CPU,
            **options: Any) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    reader = Sampler(sources, device)
    reader.start()
    time.sleep(seconds)
    return reader.stop(**options), reader.outcomes


def at(number: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Do something at the sample of that number."""
    return lambda one: act() if one == number else None


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "charact-sampler"]


def test_rows_are_of_the_table_and_tell_the_whole_and_the_samples() -> None:
    rows, outcomes = sampled(Made())
    assert outcomes == {"made": OK}
    assert all(set(row) == set(column_names("counters")) - {"case"} for row in rows)
    whole = [row for row in rows if row["time_s"] is None]
    samples = [row for row in rows if row["time_s"] is not None]
    assert [row["value"] for row in whole] == [len(samples)]
    assert [row["value"] for row in samples] == list(range(1, len(samples) + 1))
    times_s = [row["time_s"] for row in samples]
    assert times_s[0] >= 0.005
    assert all(later - earlier >= 0.005 for earlier, later in pairwise(times_s))
    assert threads() == []


def test_a_source_without_a_period_has_no_thread() -> None:
    reader = Sampler([Made(period_s=None)], CPU)
    reader.start()
    assert threads() == []
    assert [(row["time_s"], row["value"]) for row in reader.stop()] == [(None, 0.0)]


def test_a_stretch_shorter_than_a_period_has_one_sample() -> None:
    rows, _ = sampled(Made(period_s=60), seconds=0)
    assert [(row["time_s"] is None, row["value"]) for row in rows] == [(True, 1.0), (False, 1.0)]


def test_samples_lie_in_the_phases_of_their_moments() -> None:
    source = Made()
    reader = Sampler([source], CPU)
    reader.start()
    edges = [time.perf_counter_ns()]
    for _ in range(3):
        time.sleep(0.06)
        edges.append(time.perf_counter_ns())
    spans = [(edges[2], edges[3], "backward"), (edges[0], edges[1], "forward")]  # in any order
    samples = [row for row in reader.stop(lambda: spans) if row["time_s"] is not None]
    moments = [round(row["time_s"] * 1e9) + reader.begun_ns for row in samples]
    expected = ["forward" if edges[0] <= moment < edges[1] else
                "backward" if edges[2] <= moment < edges[3] else None for moment in moments]
    assert [row["phase"] for row in samples] == expected
    assert {"forward", "backward", None} <= set(expected)


def test_the_device_is_read_before_the_host() -> None:
    closed: list[str] = []
    host, device = (Made(name, closing=lambda name=name: closed.append(name)) for name in ("host", "device"))
    device.reads = "device"
    _, outcomes = sampled(host, device)
    assert closed == ["device", "host"]
    assert list(outcomes) == ["host", "device"]


def test_phases_are_asked_for_when_counting_has_ended() -> None:
    source = Made()

    def phases() -> list[tuple[int, int, str]]:
        assert source.num_open == 0
        assert threads() == []
        return []

    sampled(source, phases=phases)


def test_no_more_samples_are_taken_than_memory_is_given_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MAX_SAMPLES", 3)
    rows, outcomes = sampled(Made(period_s=0.001))
    assert sum(row["time_s"] is not None for row in rows) == 3
    assert outcomes["made"]["status"] == "ok"


@pytest.mark.parametrize(("source", "status", "reason", "remedy"), [
    (Made(here=Unavailable("too old", "buy one")), "n/a", "too old", "buy one"),
    (Made(devices=frozenset({"cuda"})), "n/a", "counts on cuda devices only", None),
    (Made(opening=refuse), "n/a", "somebody else holds it", "ask them"),
    (Made(opening=break_down), "failed", "ValueError: no such", None),
    (Made(sampling=at(0, refuse)), "n/a", "somebody else holds it", "ask them"),
    (Made(sampling=at(2, refuse)), "n/a", "stopped after sample 2: somebody else holds it", "ask them"),
    (Made(sampling=at(1, break_down)), "failed", "stopped after sample 1: ValueError: no such", None),
    (Made(closing=refuse, period_s=None), "n/a", "somebody else holds it", "ask them"),
    (Made(closing=break_down, period_s=None), "failed", "ValueError: no such", None),
])
def test_what_becomes_of_one_source_is_told_and_the_others_go_on(
        source: Made, status: str, reason: str, remedy: str | None) -> None:
    other = Made("other")
    rows, outcomes = sampled(source, other)
    assert {key: outcomes["made"][key] for key in ("status", "reason", "remedy")} == {
        "status": status, "reason": reason, "remedy": remedy}
    assert outcomes["other"] == OK
    assert sum(row["source"] == "other" for row in rows) > 1
    assert source.num_open == other.num_open == 0
    num_samples = sum(row["source"] == "made" and row["time_s"] is not None for row in rows)
    assert num_samples == len(source.sampled_ns)


def test_a_source_that_is_lost_midway_is_asked_no_more() -> None:
    asked: list[int] = []

    def sampling(number: int) -> None:
        asked.append(number)
        if number == 1:
            refuse()

    sampled(Made(sampling=sampling))
    assert asked == [0, 1]


def test_all_are_asked_before_any_counts() -> None:
    order: list[str] = []

    class Asked(Made):
        def available(self) -> Unavailable | None:
            order.append(f"{self.name} asked")
            return None

    sampled(*(Asked(name, opening=lambda name=name: order.append(f"{name} opened")) for name in "ab"))
    assert order == ["a asked", "b asked", "a opened", "b opened"]


def test_sources_from_a_trace_or_of_a_pass_of_their_own_are_left_alone() -> None:
    source = Made(opening=break_down)
    source.taken = "trace"
    assert sampled(source) == ([], {})


def test_the_device_is_the_hosts_or_the_cases() -> None:
    on_device = Made("device")
    on_device.reads = "device"
    rows, _ = sampled(Made("host"), on_device, device=torch.device("cuda", 1))
    assert {(row["source"], row["device"]) for row in rows} == {("host", "cpu"), ("device", "cuda:1")}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
def test_what_is_abandoned_is_closed_but_not_in_a_forked_process() -> None:
    source = Made(opening=fine)
    reader = Sampler([source], CPU)
    reader.abandon()  # nothing has begun
    reader.start()
    if (child := os.fork()) == 0:
        reader.abandon()
        os._exit(source.num_open)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    reader.abandon()
    assert source.num_open == 0
    assert threads() == []
