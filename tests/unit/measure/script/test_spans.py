"""Spans and slices under a clock that is set by hand."""

import pytest

from charact.measure.script.spans.recorder import Kind, Slice, SpanRecorder


class Clock:
    def __init__(self) -> None:
        self.now_ns = 100

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> SpanRecorder:
    recorder = SpanRecorder(clock)
    recorder.on = True
    return recorder


def brief(slices: list[Slice]) -> list[tuple[Kind, int, int, bool, bool]]:
    return [(one.kind, one.start_ns, one.end_ns, one.begins, one.ends) for one in slices]


class TestExclusiveTime:
    def test_a_span_is_one_slice(self, recorder: SpanRecorder, clock: Clock) -> None:
        recorder.enter(Kind.FORWARD, 7, grad=False, training=False)
        clock.now_ns = 130
        recorder.leave()
        assert recorder.take() == [Slice(Kind.FORWARD, 100, 130, 7, grad=False, training=False, ends=True)]
        assert recorder.take() == []

    def test_inner_spans_cut_the_outer_one(self, recorder: SpanRecorder, clock: Clock) -> None:
        recorder.enter(Kind.STEP, 1)
        for start_ns in (110, 120):
            clock.now_ns = start_ns
            recorder.enter(Kind.FORWARD, 2)
            clock.now_ns += 2
            recorder.enter(Kind.LOSS)
            clock.now_ns += 3
            recorder.leave()
            clock.now_ns += 4
            recorder.leave()
        clock.now_ns = 150
        recorder.leave()
        assert brief(recorder.take()) == [
            (Kind.STEP, 100, 110, True, False),
            (Kind.FORWARD, 110, 112, True, False), (Kind.LOSS, 112, 115, True, True),
            (Kind.FORWARD, 115, 119, False, True),
            (Kind.STEP, 119, 120, False, False),
            (Kind.FORWARD, 120, 122, True, False), (Kind.LOSS, 122, 125, True, True),
            (Kind.FORWARD, 125, 129, False, True),
            (Kind.STEP, 129, 150, False, True),
        ]  # fmt: skip

    def test_events_stand_at_both_ends(self, recorder: SpanRecorder) -> None:
        events = iter("abcd")
        recorder.new_event = lambda: next(events)
        recorder.enter(Kind.FORWARD)
        recorder.enter(Kind.LOSS)
        recorder.leave()
        recorder.leave()
        assert [(one.start_event, one.end_event) for one in recorder.take()] == [("a", "b"), ("b", "c"), ("c", "d")]


class TestWhatMayOpen:
    def test_nothing_while_it_is_off(self) -> None:
        recorder = SpanRecorder()
        assert not recorder.may_open
        recorder.on = True
        recorder.enter(Kind.FORWARD)
        recorder.on = False
        assert not recorder.may_open
        recorder.leave()  # what is open is closed as usual
        assert recorder.idle

    @pytest.mark.parametrize(("outer", "inner", "may"), [
        (Kind.FORWARD, Kind.FORWARD, False), (Kind.FORWARD, Kind.LOSS, True), (Kind.BACKWARD, Kind.FORWARD, False),
        (Kind.BACKWARD, Kind.STEP, True), (Kind.STEP, Kind.STEP, False), (Kind.STEP, Kind.FORWARD, True),
        (Kind.FETCH, Kind.COPY, False), (Kind.LOSS, Kind.LOSS, False), (Kind.COMPILE, Kind.COMPILE, False),
        (Kind.BACKWARD, Kind.COMPILE, True), (Kind.STEP, Kind.CLOSURE, True), (Kind.CLOSURE, Kind.BACKWARD, True),
    ])
    def test_a_call_inside_another_is_a_span_of_its_own_or_the_outer_ones(
            self, recorder: SpanRecorder, outer: Kind, inner: Kind, may: bool) -> None:
        recorder.enter(outer)
        assert (inner in recorder.may_open) is may
        assert recorder.is_top(outer)
        recorder.leave()
        assert inner is Kind.CLOSURE or inner in recorder.may_open

    def test_what_runs_is_told_at_each_change(self, recorder: SpanRecorder) -> None:
        told: list[Kind | None] = []
        recorder.on_change = told.append
        recorder.enter(Kind.FORWARD)
        recorder.enter(Kind.LOSS)
        recorder.leave()
        recorder.leave()
        assert told == [Kind.FORWARD, Kind.LOSS, Kind.FORWARD, None]


class TestSecondThoughts:
    def test_a_span_that_is_dropped_leaves_nothing(self, recorder: SpanRecorder, clock: Clock) -> None:
        recorder.enter(Kind.UPDATE)
        clock.now_ns = 110
        recorder.leave()
        recorder.enter(Kind.FETCH, 3)
        recorder.enter(Kind.COMPILE)
        recorder.leave()
        clock.now_ns = 120
        recorder.drop()
        assert recorder.idle
        assert brief(recorder.take()) == [(Kind.UPDATE, 100, 110, True, True)]

    def test_a_span_becomes_another_kind_but_not_what_is_inside(self, recorder: SpanRecorder, clock: Clock) -> None:
        recorder.enter(Kind.FORWARD, 4)
        clock.now_ns = 105
        recorder.leave()
        recorder.enter(Kind.FORWARD, 4)
        clock.now_ns = 110
        recorder.enter(Kind.COMMUNICATION)
        clock.now_ns = 115
        recorder.leave()
        clock.now_ns = 120
        recorder.leave_as(Kind.LOSS)
        assert brief(recorder.take()) == [
            (Kind.FORWARD, 100, 105, True, True), (Kind.LOSS, 105, 110, True, False),
            (Kind.COMMUNICATION, 110, 115, True, True), (Kind.LOSS, 115, 120, False, True),
        ]  # fmt: skip

    def test_slices_can_be_taken_amid_a_span(self, recorder: SpanRecorder, clock: Clock) -> None:
        recorder.enter(Kind.STEP)
        clock.now_ns = 110
        recorder.enter(Kind.FORWARD)
        assert brief(recorder.take()) == [(Kind.STEP, 100, 110, True, False)]
        clock.now_ns = 120
        recorder.leave()
        recorder.leave()
        assert brief(recorder.take()) == [(Kind.FORWARD, 110, 120, True, True), (Kind.STEP, 120, 120, False, True)]
