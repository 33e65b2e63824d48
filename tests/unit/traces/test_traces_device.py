"""Arithmetic of intervals on the device, and the clock that CUDA events would be read from."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from charact.traces.counters import counter_rows
from charact.traces.device import EventTimes, length_ns, union, without
from charact.traces.events import DeviceEvent, TraceEvents

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
