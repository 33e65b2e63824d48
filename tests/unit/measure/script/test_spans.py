"""Spans and slices under a clock that is set by hand."""

from typing import Any

import pytest

from charact.measure.script.spans.iteration_segmenter import Segmenter
from charact.measure.script.spans.recorder import Kind, Slice, SpanRecorder


@pytest.fixture
def now_ns() -> list[int]:
    """Time of the clock."""
    return [100]


@pytest.fixture
def recorder(now_ns: list[int]) -> SpanRecorder:
    recorder = SpanRecorder(lambda: now_ns[0])
    recorder.on = True
    return recorder


def run(recorder: SpanRecorder, now_ns: list[int], words: str) -> list[tuple[Kind, int, int, bool, bool]]:
    """Return kind, start, end, `begins` and `ends` of slices: a word opens a span, `)` closes it, a number waits."""
    for word in words.split():
        if word.isdigit():
            now_ns[0] += int(word)
        elif word == ")":
            recorder.leave()
        else:
            recorder.enter(Kind[word], len(word))
    return [(each.kind, each.start_ns, each.end_ns, each.begins, each.ends) for each in recorder.take()]


@pytest.mark.parametrize(("words", "slices"), [
    ("FORWARD 30 )", [(Kind.FORWARD, 100, 130, True, True)]),
    ("STEP 10 FORWARD 2 LOSS 3 ) 4 ) 1 FORWARD 9 ) 5 )", [
        (Kind.STEP, 100, 110, True, False), (Kind.FORWARD, 110, 112, True, False), (Kind.LOSS, 112, 115, True, True),
        (Kind.FORWARD, 115, 119, False, True), (Kind.STEP, 119, 120, False, False),
        (Kind.FORWARD, 120, 129, True, True), (Kind.STEP, 129, 134, False, True)]),
    ("STEP 10 FORWARD", [(Kind.STEP, 100, 110, True, False)]),  # what is open has ended no slice
])
def test_inner_spans_cut_the_outer_one(recorder: SpanRecorder, now_ns: list[int], words: str, slices: list[Any]
                                       ) -> None:
    assert run(recorder, now_ns, words) == slices
    assert recorder.take() == []
    assert recorder.idle is (words.count(")") == sum(word.isalpha() for word in words.split()))


def test_a_slice_has_what_its_span_has(recorder: SpanRecorder, now_ns: list[int]) -> None:
    events = iter("abcd")
    recorder.new_event = lambda: next(events)
    recorder.enter(Kind.FORWARD, 7, grad=False, training=False, method=True)
    recorder.enter(Kind.LOSS)
    now_ns[0] = 130
    recorder.leave()
    recorder.leave()
    outer = Slice(Kind.FORWARD, 100, 100, 7, False, False, False, "a", "b", None, True, True)
    assert recorder.take() == [
        outer, Slice(Kind.LOSS, 100, 130, 0, ends=True, start_event="b", end_event="c"),
        Slice(Kind.FORWARD, 130, 130, 7, False, False, True, "c", "d", None, False, True)]


def test_nothing_may_open_while_it_is_off() -> None:
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
        recorder: SpanRecorder, outer: Kind, inner: Kind, may: bool) -> None:
    recorder.enter(outer)
    assert (inner in recorder.may_open) is may
    assert recorder.top is outer
    recorder.leave()
    assert inner is Kind.CLOSURE or inner in recorder.may_open


def test_changes_and_outermost_openings_are_reported(recorder: SpanRecorder, now_ns: list[int]) -> None:
    changes, opened = list[Kind | None](), list[tuple[Kind, int, bool]]()
    recorder.on_change, recorder.on_open = changes.append, lambda *span: opened.append(span)
    run(recorder, now_ns, "FORWARD LOSS ) ) STEP )")
    assert changes == [Kind.FORWARD, Kind.LOSS, Kind.FORWARD, None, Kind.STEP, None]
    assert opened == [(Kind.FORWARD, 7, False), (Kind.STEP, 4, False)]


def test_a_dropped_span_leaves_nothing(recorder: SpanRecorder, now_ns: list[int]) -> None:
    recorder.enter(Kind.UPDATE)
    recorder.leave()
    recorder.enter(Kind.FETCH, 3)
    recorder.enter(Kind.COMPILE)
    recorder.leave()
    recorder.drop()
    assert recorder.idle
    assert [each.kind for each in recorder.take()] == [Kind.UPDATE]


def test_a_span_becomes_another_kind_but_not_what_is_inside(recorder: SpanRecorder) -> None:
    for last in (False, True):
        recorder.enter(Kind.FORWARD, 4)
        if last:
            recorder.enter(Kind.COMMUNICATION)
            recorder.leave()
            recorder.leave_as(Kind.LOSS)
        else:
            recorder.leave()
    assert [each.kind for each in recorder.take()] == [Kind.FORWARD, Kind.LOSS, Kind.COMMUNICATION, Kind.LOSS]


@pytest.mark.parametrize(("duration_ns", "inner", "is_recorded"), [
    (20, False, True), (19, False, False), (20, True, False)])
def test_a_long_block_without_spans_is_recorded(recorder: SpanRecorder, now_ns: list[int], duration_ns: int,
                                                inner: bool, is_recorded: bool) -> None:
    begun = recorder.begin_untracked()
    assert begun is not None
    now_ns[0] += duration_ns
    if inner:
        run(recorder, now_ns, "LOSS )")
    recorder.end_untracked(begun, 20)
    assert [(each.kind, each.start_ns, each.end_ns) for each in recorder.take()] == (
        [(Kind.UNTRACKED, 100, 120)] if is_recorded else [])
    recorder.enter(Kind.FORWARD)
    assert recorder.begin_untracked() is None


class TestNamedPhases:
    def test_they_have_all_the_time_inside_but_steps_are_recorded(self, recorder: SpanRecorder) -> None:
        recorder.enter_annotated(Kind.LOSS, "loss")
        assert not recorder.may_open & {Kind.FORWARD, Kind.BACKWARD}
        recorder.enter(Kind.STEP, 2)
        recorder.leave()
        recorder.leave_annotated()
        assert [(each.kind, each.phase) for each in recorder.take()] == [
            (Kind.LOSS, "loss"), (Kind.STEP, "loss"), (Kind.LOSS, "loss")]
        assert Kind.FORWARD in recorder.may_open

    def test_an_inner_one_has_its_own_time(self, recorder: SpanRecorder) -> None:
        recorder.enter(Kind.FORWARD, 1)
        for kind, phase in ((Kind.OTHER, "other"), (Kind.FETCH, "data")):
            recorder.enter_annotated(kind, phase)
        recorder.leave_annotated()
        recorder.leave_annotated()
        recorder.leave()
        assert [each.phase for each in recorder.take()] == [None, "other", "data", "other", None]

    @pytest.mark.parametrize("grad", [True, False])
    def test_a_forward_is_like_the_models_inside(self, recorder: SpanRecorder, grad: bool) -> None:
        recorder.enter_annotated(Kind.FORWARD, "forward", grad=True)
        recorder.enter(Kind.FORWARD, 1, grad=grad, training=grad)
        recorder.leave()
        recorder.leave_annotated()
        assert [(each.owner, each.grad, each.training) for each in recorder.take()] == [
            (0, grad, grad), (1, grad, grad), (0, grad, grad)]

    def test_compilation_stays_apart(self, recorder: SpanRecorder) -> None:
        recorder.enter_annotated(Kind.FORWARD, "forward", grad=False)
        recorder.enter(Kind.COMPILE)
        recorder.leave()
        recorder.leave_annotated()
        segmenter = Segmenter()
        (iteration,) = [*segmenter.feed(recorder.take()), *segmenter.finish()]
        assert [(each.phase, each.compiling) for each in iteration.intervals] == [
            ("forward", False), ("other", True), ("forward", False)]
