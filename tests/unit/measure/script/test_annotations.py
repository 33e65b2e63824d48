"""What a program tells of itself: named phases, batches, ends of iterations; and loaders that look ahead."""

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.measure.script.spans.recorder import Kind, Slice, SpanRecorder
from charact.measure.script.spans.segmenter import Segmenter

MODEL, OPTIMIZER, LOADER = 1, 2, 3


def slices(words: str) -> list[Slice]:
    """A slice of 10 ns for each word, 10 ns apart.

    F a fetch, B a batch that was named, X a loader's end, m a forward without gradients, M one with, b a backward, s a
    step, z gradients set to zero, E an end that was told, which takes no time.
    """
    kinds = {
        "F": (Kind.FETCH, LOADER), "B": (Kind.FETCH, -1), "X": (Kind.EXHAUSTED, LOADER), "m": (Kind.FORWARD, MODEL),
        "M": (Kind.FORWARD, MODEL), "b": (Kind.BACKWARD, 0), "s": (Kind.STEP, OPTIMIZER), "z": (Kind.UPDATE, 0),
        "E": (Kind.END, 0),
    }  # fmt: skip
    made = []
    for start_ns, word in zip(count(0, 20), words.replace(" ", ""), strict=False):
        kind, owner = kinds[word]
        made.append(Slice(kind, start_ns, start_ns + 10 * (word != "E"), owner, grad=word != "m", ends=True,
                          training=word != "m", phase="data" if word == "B" else None))
    return made


def found(words: str) -> str:
    """Iterations by their modes, in order: T for training, i for inference."""
    segmenter = Segmenter(ends_marked="E" in words)
    iterations = [*segmenter.feed(slices(words)), *segmenter.finish()]
    return "".join("T" if one.training else "i" for one in iterations)


class TestIterations:
    @pytest.mark.parametrize(("words", "modes"), [
        ("B B B", "iii"),
        ("Bm Bm Bm", "iii"),
        ("BMb BMbs BMb BMbs", "TT"),
        ("BMbs BMbs Bm Bm BMbs", "TTiiT"),
    ])
    def test_batches_are_some_where_nothing_tells_more(self, words: str, modes: str) -> None:
        assert found(words) == modes

    @pytest.mark.parametrize(("words", "modes"), [
        ("MbsMbsE MbsMbsE", "TT"),
        ("MbE MbE MbE", "TTT"),
        ("E mm E mm E", "ii"),
        ("E E E", "ii"),
        ("E", ""),
        ("FMbsE FmFmX FMbsE", "TiiT"),
        ("FMbsE FmFmX", "Tii"),
        ("FMbsE FMb", "T"),
    ])
    def test_what_is_told_ends_them_and_nothing_else(self, words: str, modes: str) -> None:
        assert found(words) == modes

    @pytest.mark.parametrize(("words", "modes"), [
        ("FMbsFMbsX FF m F m X m FMbsFMbsX", "TTiiiTT"),
        ("FMbsX FF m X m FMbs", "TiiT"),
        ("FMbsX FF mm F mm X mm FMbs", "TiiiT"),
        ("FF m F m X m", "iii"),
        ("z Fm Fm FMbs FMbs", "iiTT"),
    ])
    def test_a_loader_that_looks_ahead_gives_as_many_as_batches(self, words: str, modes: str) -> None:
        assert found(words) == modes

    def test_a_told_iteration_begins_where_the_one_before_ended(self) -> None:
        segmenter = Segmenter(ends_marked=True)
        first, second = segmenter.feed(slices("Mbs E Mbs E"))
        assert (first.start_ns, first.end_ns) == (0, 60)
        assert (second.start_ns, second.end_ns) == (60, 140)

    def test_what_is_done_at_a_told_end_is_no_iteration_s(self) -> None:
        now = count(0, 10)
        recorder = SpanRecorder(lambda: next(now))
        recorder.on = True

        def meanwhile() -> None:
            for _ in range(5):
                next(now)

        for _ in range(3):
            recorder.end_iteration(meanwhile)
        iterations = Segmenter(ends_marked=True).feed(recorder.take())
        assert [(one.start_ns, one.end_ns) for one in iterations] == [(60, 70), (130, 140)]

    @given(st.text("FBXmMbszE", max_size=40))
    def test_iterations_never_overlap_whatever_is_told(self, words: str) -> None:
        segmenter = Segmenter(ends_marked="E" in words)
        iterations = [*segmenter.feed(slices(words)), *segmenter.finish()]
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(iterations))
        for one in iterations:
            ends = [one.start_ns, *(end for each in one.intervals for end in (each.start_ns, each.end_ns)), one.end_ns]
            assert ends == sorted(ends)


class TestNamedPhases:
    @pytest.fixture
    def recorder(self) -> SpanRecorder:
        now = count(0, 10)
        recorder = SpanRecorder(lambda: next(now))
        recorder.on = True
        return recorder

    def test_all_inside_is_theirs_and_steps_are_still_seen(self, recorder: SpanRecorder) -> None:
        recorder.enter_annotated(Kind.LOSS, "loss")
        assert Kind.FORWARD not in recorder.may_open
        assert Kind.BACKWARD not in recorder.may_open
        recorder.enter(Kind.STEP, OPTIMIZER)
        recorder.leave()
        recorder.leave_annotated()
        assert [(one.kind, one.phase) for one in recorder.take()] == [
            (Kind.LOSS, "loss"), (Kind.STEP, "loss"), (Kind.LOSS, "loss")]
        assert Kind.FORWARD in recorder.may_open

    def test_an_inner_one_has_its_own_time(self, recorder: SpanRecorder) -> None:
        recorder.enter(Kind.FORWARD, MODEL)
        recorder.enter_annotated(Kind.OTHER, "other")
        recorder.enter_annotated(Kind.FETCH, "data")
        recorder.leave_annotated()
        recorder.leave_annotated()
        recorder.leave()
        assert [one.phase for one in recorder.take()] == [None, "other", "data", "other", None]

    @pytest.mark.parametrize("grad", [True, False])
    def test_whether_a_forward_recorded_gradients_its_models_tell(self, recorder: SpanRecorder, grad: bool) -> None:
        recorder.enter_annotated(Kind.FORWARD, "forward", grad=True)
        recorder.enter(Kind.FORWARD, MODEL, grad=grad, training=grad)
        recorder.leave()
        recorder.leave_annotated()
        assert [(one.owner, one.grad, one.training) for one in recorder.take()] == [
            (0, grad, grad), (MODEL, grad, grad), (0, grad, grad)]

    def test_compilation_stays_apart(self, recorder: SpanRecorder) -> None:
        recorder.enter_annotated(Kind.FORWARD, "forward", grad=False)
        recorder.enter(Kind.COMPILE)
        recorder.leave()
        recorder.leave_annotated()
        segmenter = Segmenter()
        [*_] = segmenter.feed(recorder.take())
        [iteration] = segmenter.finish()
        assert [(one.phase, one.compiling) for one in iteration.intervals] == [
            ("forward", False), ("other", True), ("forward", False)]
