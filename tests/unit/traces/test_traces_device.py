"""Arithmetic of intervals on the device, and the clock that CUDA events would be read from."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.traces.counters import counter_rows
from charact.traces.device_events import (
    EventTimes,
    covered_ns,
    device_ns_by_operator,
    find_launches,
    is_communication,
    is_copy,
    length_ns,
    union,
    without,
)
from charact.traces.events import DeviceEvent, Launch, Operator, TraceEvents

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda one: (one[0], one[0] + one[1])),
                 max_size=12)


def covered(intervals: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in intervals for moment in range(start, end)}


def event(start: int, end: int, name: str = "k", kind: str = "kernel", launched: int | None = 0) -> DeviceEvent:
    return DeviceEvent(start, end, name, kind, "0", "7", None, None, (None,) * 5, launched)


@given(SPANS)
def test_a_union_covers_each_moment_once(spans: list[tuple[int, int]]) -> None:
    joined = union(spans)
    assert covered(joined) == covered(spans)
    assert length_ns(joined) == len(covered(spans))
    assert all(before[1] < after[0] for before, after in pairwise(joined))


@given(SPANS, SPANS)
def test_what_others_cover_is_taken_away(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    left = without(union(spans), union(others))
    assert covered(left) == covered(spans) - covered(others)
    assert length_ns(left) == len(covered(left))


@given(SPANS, SPANS, SPANS)
def test_busy_time_is_computation_and_what_nothing_hides(computation: list[tuple[int, int]],
                                                        communication: list[tuple[int, int]],
                                                        copies: list[tuple[int, int]]) -> None:
    events = [*(event(*span) for span in computation), *(event(*span, "ncclKernel") for span in communication),
              *(event(*span, "Memcpy DtoH", "gpu_memcpy") for span in copies)]
    used = {row["counter"]: round(row["value"] * 1e9) for row in counter_rows([TraceEvents(device=events)], 0)}
    if events:
        assert used["busy_s"] == used["computation_s"] + used["exposed_communication_s"] + used["exposed_copy_s"]
        assert used["busy_s"] == len(covered(computation) | covered(communication) | covered(copies))
        assert used["overlapped_communication_s"] == len(covered(communication) & covered(computation))
        assert used["span_s"] == used["busy_s"] + used["idle_s"] >= used["busy_s"]


class TestClock:
    def test_it_waits_for_what_was_launched_before(self) -> None:
        clock = EventTimes([event(10, 100, launched=5), event(100, 150, launched=20)])
        assert [clock.at(moment) for moment in (0, 4, 5, 19, 20, 140, 200)] == [0, 4, 100, 100, 150, 150, 200]
        clock = EventTimes([event(10, 100, launched=5), event(20, 900, "ncclDevKernel", launched=6)])
        assert clock.at(50) == 100
        assert EventTimes([event(0, 70, launched=None)]).at(10) == 70

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 20)), max_size=10))
    def test_it_never_runs_back(self, launches: list[tuple[int, int, int]]) -> None:
        clock = EventTimes([event(start, start + length, launched=at) for at, start, length in launches])
        moments = [clock.at(moment) for moment in range(80)]
        assert moments == sorted(moments)
        assert all(passed >= moment for moment, passed in enumerate(moments))


@given(SPANS, st.integers(0, 60), st.integers(0, 60))
def test_how_much_of_an_interval_is_covered(spans: list[tuple[int, int]], start: int, length: int) -> None:
    assert covered_ns(union(spans), start, start + length) == len(covered(spans) & set(range(start, start + length)))


@pytest.mark.parametrize(("name", "kind", "communicates", "copies"), [
    ("ncclDevKernel_AllReduce", "kernel", True, False), ("x" * 50 + "RCCL", "kernel", True, False),
    ("void f<ncclType>(ncclComm*)", "kernel", False, False), ("nccl", "gpu_memset", False, False),
    ("nccl", "gpu_memcpy", False, True), ("k", "memcpy", False, True), ("k", "memset", False, False)])
def test_kinds_of_events(name: str, kind: str, communicates: bool, copies: bool) -> None:
    one = event(0, 1, name, kind)
    assert (is_communication(one), is_copy(one)) == (communicates, copies)


def test_launches_are_those_of_correlations_operators_or_earlier_events() -> None:
    main = (1, 1)
    outer, inner, other = (Operator(thread, start, end, name, None, "[]") for thread, start, end, name in (
        (main, 0, 100, "outer"), (main, 10, 50, "inner"), ((1, 2), 0, 100, "other")))

    def kernel(start: int, stream: str = "7", **links: int) -> DeviceEvent:
        return DeviceEvent(start, start + 5, "k", "kernel", "0", stream, links.get("operator"), links.get("launch"),
                           ("g", None, 9, links.get("shared"), None))

    device = [kernel(200, launch=1), kernel(210, launch=2), kernel(220, launch=3), kernel(230, launch=4),
              kernel(240, operator=5), kernel(250), kernel(190, "8", launch=99), kernel(260, "8", launch=1, shared=0),
              kernel(270, "9", launch=99), kernel(280, "9")]
    launches = {number: Launch(thread, at, external, ("G", "B", 1, 3, None)) for number, thread, at, external in (
        (1, main, 20, None), (2, main, 50, None), (3, (1, 3), 30, None), (4, main, 15, 5))}
    find_launches(TraceEvents(operators=[inner, outer, other], by_id={5: other}, device=device, launches=launches))
    found = {each.start_ns: (each.launched_ns, each.operator and each.operator.name) for each in device}
    assert found == {190: (None, None), 200: (20, "inner"), 210: (50, "outer"), 220: (30, None), 230: (15, "other"),
                     240: (0, "other"), 250: (50, None), 260: (20, "inner"), 270: (270, None), 280: (280, None)}
    assert [each.start_ns for each in device] == sorted(found)
    assert {each.start_ns: each.geometry for each in device if each.start_ns in (200, 250, 260)} == {
        200: ("g", "B", 9, 3, None), 250: ("g", None, 9, None, None), 260: ("g", "B", 9, 0, None)}
    assert [each.device_ns for each in (outer, inner, other)] == [5, 10, 10]
    assert device_ns_by_operator(TraceEvents(by_id={5: other, 6: Operator(main, 0, 1, "n", None, "[]")})) == {5: 10}
