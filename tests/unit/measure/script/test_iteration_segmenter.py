"""Iterations and phases of streams of slices that are written by hand, to the nanosecond."""

from collections import Counter
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.timeline import Iteration
from charact.measure.script.spans.iteration_segmenter import UNDECIDED, InferenceStarts, Segmenter
from charact.measure.script.spans.recorder import Kind, Slice, SpanRecorder

KINDS = {
    "data": Kind.FETCH, "batch": Kind.FETCH, "last": Kind.EXHAUSTED, "copy": Kind.COPY, "fwd": Kind.FORWARD,
    "eval": Kind.FORWARD, "bad": Kind.FORWARD, "teach": Kind.FORWARD, "loss": Kind.LOSS, "bwd": Kind.BACKWARD,
    "step": Kind.STEP, "tidy": Kind.UPDATE, "comm": Kind.COMMUNICATION, "comp": Kind.COMPILE, "clos": Kind.CLOSURE,
    "tran": Kind.TRANSFORM, "free": Kind.UNTRACKED, "end": Kind.END,
}
LONG_NS, GAP_NS = 10, 3
OWNERS = {Kind.FETCH: 100, Kind.FORWARD: 1, Kind.STEP: 50}


def tape(text: str) -> list[Slice]:
    """Slices of 10 ns, one a word; a point is a gap of 3 ns.

    `bwd<` is cut by what follows, `>bwd` goes on after it; `fwd2` has 2 as its owner. `eval` is a forward without
    gradients in evaluation mode, `bad` one with gradients, `teach` one without gradients in training mode. The program
    itself marks a `batch`, and the `end` of an iteration, which takes no time.
    """
    slices: list[Slice] = []
    now_ns = 0
    for word in text.split():
        if word == ".":
            now_ns += GAP_NS
            continue
        name = word.strip("<>0123456789")
        kind, digits, length_ns = KINDS[name], word.strip("<>")[len(name):], 0 if name == "end" else LONG_NS
        slices.append(Slice(
            kind, now_ns, now_ns + length_ns,
            int(digits) if digits else -1 if name == "batch" else OWNERS.get(kind, 0),
            grad=name not in ("eval", "teach"), training=name not in ("eval", "bad"), ends=not word.endswith("<"),
            begins=not word.startswith(">"), phase="data" if name == "batch" else None))
        now_ns += length_ns
    return slices


def iterations_of(text: str) -> list[Iteration]:
    segmenter = Segmenter(ends_marked="end" in text)
    return [*segmenter.feed(tape(text)), *segmenter.finish()]


def phases_ns(iteration: Iteration) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for interval in iteration.intervals:
        sums[interval.phase] += interval.host_ns
    sums["other"] += iteration.host_ns - sum(sums.values())
    return {phase: ns for phase, ns in sums.items() if ns}


def modes(iterations: list[Iteration]) -> str:
    return "".join("t" if iteration.training else "i" for iteration in iterations)


def owners(text: str, phase: str) -> list[list[int]]:
    return [[interval.owner for interval in iteration.intervals if interval.phase == phase]
            for iteration in iterations_of(text)]


def edges(text: str) -> list[tuple[int, int]]:
    return [(iteration.start_ns, iteration.end_ns) for iteration in iterations_of(text)]


TRAIN = "data fwd loss bwd step tidy "
WITHOUT_LOADER = TRAIN.removeprefix("data ")
CLOSURE = "clos< tidy >clos< fwd >clos< loss >clos< bwd >clos "
STEP = "step< clos< tidy >clos< fwd >clos< loss >clos< bwd >clos >step "
TASKS = ["data fwd1 loss bwd step51 tidy . ", "data fwd2 loss bwd step52 tidy . "]
EPOCHS = 2 * "".join(TASKS) + TASKS[0] + "last100 . data0 " + "".join(
    task.replace("data", "data101") for task in TASKS[::-1])
SKIPPED, WHOLE = "data fwd bwd tidy1 ", "data fwd bwd step tidy1 "


@pytest.mark.parametrize(("text", "expected"), [
    ("data . fwd loss bwd . step . data fwd loss bwd step tidy .", [(0, 59), (59, 119)]),  # the last: its last slice
    ("fwd bwd step . fwd bwd step", [(0, 33), (33, 63)]),
    (2 * "data fwd bwd< step51 >bwd< step52 >bwd ", [(0, 70), (70, 140)]),
    # The gap after the first epoch, such as saving, belongs to no iteration.
    ("data fwd bwd step last . data fwd bwd step last", [(0, 50), (53, 103)]),
    *((before + ". data0 " + 2 * TRAIN, [(ns, ns + 70), (ns + 70, ns + 130)])  # what comes before belongs to none
      for before, ns in (("tidy ", 13), ("data0 data ", 23), ("copy ", 13))),
    ("data fwd loss bwd . tidy . data fwd loss bwd . tidy", [(0, 56), (56, 109)]),
    ("fwd loss bwd . tidy . fwd loss bwd . tidy", [(0, 46), (46, 89)]),
    ("bwd step tidy . . bwd step tidy . . bwd step tidy", [(0, 30), (30, 66), (66, 102)]),
    ("fwd . bwd step end . fwd bwd step end", [(0, 33), (33, 66)]),
])
def test_an_iteration_begins_where_the_one_before_ends(text: str, expected: list[tuple[int, int]]) -> None:
    assert edges(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    (2 * ("data fwd bwd " * 3 + "step "), "tt"),  # micro-batches
    (EPOCHS, 7 * "t"),  # tasks that take turns
    (3 * "data fwd1 loss bwd step51 data101 fwd2 loss bwd step52 ", "ttt"),  # a pair with two loaders
    (3 * "data fwd1 loss bwd step51 data fwd1 fwd2 loss bwd step52 ", "ttt"),  # with a common model
    (2 * f"data step< {CLOSURE} >step< {CLOSURE} >step ", "tt"),
    (3 * "data eval9 fwd loss bwd step ", "ttt"),  # a teacher
    (3 * "eval9 fwd loss bwd step ", "ttt"),
    (3 * "fwd2 teach1 bwd step52 fwd1 bwd step51 ", "ttt"),
    ("data eval data eval " + 2 * TRAIN, "iitt"),
    ("fwd bwd . bwd . bwd . " * 5, 5 * "t"),  # without an optimizer
    ("bwd . bwd . bwd . ", "ttt"),  # the forwards of these were not recorded
    (10 * ("eval" + 8 * " eval2" + " . "), 10 * "i"),  # an encoder and the steps of a decoder
    (3 * "data eval fwd loss bwd step ", "ttt"),  # pseudo-labels
    *((3 * (zeroed + "step " + zeroed), 5 * "t")  # the last step may only be late
      for zeroed in ("data tidy1 fwd bwd ", "tidy1 data fwd bwd ")),
    *((3 * (3 * micro + "step tidy1 "), "ttt") for micro in ("data fwd bwd ", "data fwd bwd tidy ")),  # accumulated
    (3 * "data fwd bwd tidy1 data101 fwd2 bwd step tidy1 ", "ttt"),  # two losses
    ("".join(3 * fit for fit in ("eval9 fwd1 bwd step51 ", "eval8 fwd2 bwd step52 ", "teach7 fwd3 bwd step53 ")),
     9 * "t"),
    ("batch . batch . batch", "iii"),
    (3 * "batch eval ", "iii"),
    (2 * "batch fwd bwd batch fwd bwd step ", "tt"),
    (2 * "batch fwd bwd step " + 2 * "batch eval " + "batch fwd bwd step", "ttiit"),
    (2 * ("fwd bwd step fwd bwd step end "), "tt"),
    (3 * "fwd bwd end ", "ttt"),
    ("end eval eval end eval end ", "ii"),
    ("end . end . end", "ii"),
    ("end", ""),
    ("data fwd bwd step end data eval data eval last data fwd bwd step end", "tiit"),
    ("data fwd bwd step end data eval data eval last", "tii"),
    ("data fwd bwd step end data fwd bwd", "t"),
    # Loaders that look ahead: there are as many iterations as batches.
    ("data fwd bwd step " * 2 + "last data data eval data eval last eval " + "data fwd bwd step " * 2 + "last",
     "ttiiitt"),
    ("data fwd bwd step last data data eval last eval data fwd bwd step", "tiit"),
    ("data fwd bwd step last data data eval eval data eval eval last eval eval data fwd bwd step", "tiiit"),
    ("data data eval data eval last eval", "iii"),
    ("tidy data eval data eval " + 2 * "data fwd bwd step ", "iitt"),
])
def test_what_trains_and_what_infers(text: str, expected: str) -> None:
    assert modes(iterations_of(text)) == expected


@pytest.mark.parametrize(("text", "phase", "expected"), [
    (2 * "data fwd2 loss bwd fwd1 fwd2 loss bwd step52 fwd2 loss bwd step51 ", "backward", 2 * [[52, 52, 51]]),
    (2 * "data fwd2 loss bwd fwd1 fwd2 loss bwd step52 fwd2 loss bwd step51 ", "forward", 2 * [[2, 1, 2, 2]]),
    (2 * (2 * "data fwd2 bwd step52 " + "fwd1 fwd2 bwd step51 "), "backward", 2 * [[52], [52, 51]]),  # critic steps
    ("".join(3 * f"data fwd{number} bwd step{number} tidy . " for number in (51, 52, 53)), "backward",
     [[51], [51], [51], [52], [52], [52], [53], [53], [53]]),  # fits one after another
    (EPOCHS, "forward", [[1], [2], [1], [2], [1], [2], [1]]),
    (3 * "data fwd bwd step51 " + 3 * "data fwd bwd step51 fwd bwd step52 ", "update", 3 * [[51]] + 3 * [[51, 52]]),
    (2 * "data fwd . bwd step51 fwd2 . bwd step52 ", "loss", 2 * [[51, 52]]),  # inferred
])
def test_each_part_has_its_owner(text: str, phase: str, expected: list[list[int]]) -> None:
    assert owners(text, phase) == expected


@pytest.mark.parametrize(("text", "phases"), [
    (TRAIN, {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 20}),
    ("data . fwd loss bwd . step .",
     {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 10, "other": 9}),
    ("data fwd bwd " * 3 + "step ", {"data": 30, "forward": 30, "backward": 30, "update": 10}),
    # A closure's own time is a gap: between the forward and the loss it is the loss's, else nobody's.
    (f"data step< {CLOSURE} >step< {CLOSURE} >step ",
     {"data": 10, "update": 50, "forward": 20, "loss": 40, "backward": 20, "other": 80}),
    ("data fwd bwd< step51 >bwd< step52 >bwd ", {"data": 10, "forward": 10, "backward": 30, "update": 20}),
    # Without an optimizer: with a loader, what follows the backward is the update.
    ("data fwd loss bwd . tidy . ", {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 16}),
    ("fwd loss bwd . tidy . ", {"forward": 10, "loss": 10, "backward": 10, "update": 10, "other": 6}),
    ("data . bwd . ", {"data": 10, "forward": 3, "backward": 10, "update": 3}),
    ("fwd bwd . bwd . bwd . ", {"forward": 10, "loss": 6, "backward": 30, "other": 3}),
    # Gaps: from the forward to the backward it is the loss.
    ("data . fwd . bwd step", {"data": 10, "forward": 10, "loss": 3, "backward": 10, "update": 10, "other": 3}),
    ("data fwd . tidy . bwd step", {"data": 10, "forward": 10, "loss": 6, "backward": 10, "update": 20}),
    ("data fwd bwd . bwd step", {"data": 10, "forward": 10, "loss": 3, "backward": 20, "update": 10}),
    # After a recorded loss the program does other work, such as preparing the next batch.
    ("data fwd loss . bwd step",
     {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 10, "other": 3}),
    ("data fwd< loss >fwd . bwd step",
     {"data": 10, "forward": 20, "loss": 10, "backward": 10, "update": 10, "other": 3}),
    ("data fwd loss bwd . bwd step",
     {"data": 10, "forward": 10, "loss": 10, "backward": 20, "update": 10, "other": 3}),
    ("data fwd loss fwd2 . bwd step", {"data": 10, "forward": 20, "loss": 13, "backward": 10, "update": 10}),
    ("data fwd . fwd2 bwd step", {"data": 10, "forward": 20, "backward": 10, "update": 10, "other": 3}),
    # A forward that was not recorded fills the gap before the loss.
    ("data . tidy . loss . bwd step",
     {"data": 10, "update": 20, "forward": 6, "loss": 10, "backward": 10, "other": 3}),
    ("data . tidy . bwd step", {"data": 10, "update": 20, "forward": 6, "backward": 10}),
    ("data . copy . tidy . bwd step", {"data": 20, "update": 20, "forward": 6, "backward": 10, "other": 3}),
    ("data . bwd step", {"data": 10, "forward": 3, "backward": 10, "update": 10}),
    ("data . comp . bwd step", {"data": 10, "forward": 6, "backward": 10, "update": 10, "other": 10}),
    ("data fwd< comp >fwd loss bwd< comp >bwd step ",
     {"data": 10, "forward": 20, "loss": 10, "backward": 20, "update": 10, "other": 20}),
    # Own time of `torch.func`: the forward's, then the loss's, then the backward's.
    ("tran< fwd >tran< loss >tran< bwd >tran . free ",
     {"forward": 20, "loss": 30, "backward": 20, "update": 10, "other": 3}),
    ("data tran< bwd >tran step ", {"data": 10, "forward": 10, "backward": 20, "update": 10}),
    ("data tran bwd step ", {"data": 10, "forward": 10, "backward": 10, "update": 10}),  # vjp, and its function
    # A block without gradients is an update only without an optimizer and after a backward.
    ("data free fwd bwd step ", {"data": 10, "forward": 10, "backward": 10, "update": 10, "other": 10}),
    ("fwd bwd . free . ", {"forward": 10, "backward": 10, "update": 10, "other": 6}),
])
def test_phases_of_the_first_of_equal_iterations(text: str, phases: dict[str, int]) -> None:
    assert phases_ns(iterations_of(f"{text} {text}")[0]) == phases


@pytest.mark.parametrize(("text", "phases"), [
    ("bwd step tidy . . ", {"forward": 6, "backward": 10, "update": 20}),
    ("loss bwd step . ", {"forward": 3, "loss": 10, "backward": 10, "update": 10}),
    ("bwd . . ", {"backward": 10, "other": 6}),
    ("loss . bwd . ", {"loss": 10, "backward": 10, "other": 6}),
    ("fwd bwd step free ", {"forward": 10, "backward": 10, "update": 10, "other": 10}),
    ("data eval fwd loss bwd step ", {"data": 10, "forward": 20, "loss": 10, "backward": 10, "update": 10}),
    ("data data101 eval fwd loss bwd step ", {"data": 20, "forward": 20, "loss": 10, "backward": 10, "update": 10}),
    ("data fwd bwd step last ", {"data": 20, "forward": 10, "backward": 10, "update": 10}),
])
def test_phases_of_a_later_one(text: str, phases: dict[str, int]) -> None:
    assert phases_ns(iterations_of(3 * text)[1]) == phases


def test_gaps_are_inferred_and_compilation_is_known() -> None:
    first, _ = iterations_of(2 * "data fwd loss bwd . tidy . ")
    assert [interval.inferred for interval in first.intervals] == [False, False, False, False, True, False, True]
    first, _ = iterations_of(2 * "data fwd< comp >fwd loss bwd< comp >bwd step ")
    assert [interval.compiling for interval in first.intervals].count(True) == 2


@pytest.mark.parametrize("validation", [
    "data eval loss data eval loss last ", "eval loss eval loss ", "data bad loss data bad loss ", "bad bad ",
    "copy eval copy eval ",
])
def test_a_validation_is_not_the_training_s(validation: str) -> None:
    training = "data0 " + 2 * TRAIN if validation.startswith("data") else 2 * WITHOUT_LOADER
    iterations = iterations_of(2 * (training + ". " + validation))
    assert modes(iterations) == "ttiittii"
    assert all(set(phases_ns(each)) <= {"data", "forward", "loss"} for each in iterations if not each.training)
    assert all("backward" in phases_ns(each) for each in iterations if each.training)


@pytest.mark.parametrize(("training", "evaluation", "update_ns"), [
    ("tidy fwd loss bwd step ", ". eval loss . ", 20), ("tidy fwd loss bwd step ", ". teach1 loss . ", 20),
    (STEP, ". eval loss . ", 30), (STEP, ". teach1 loss . ", 30)])
def test_a_full_batch_evaluation_is_not_the_training_s(training: str, evaluation: str, update_ns: int) -> None:
    """Zeroed gradients, or the step around a closure, begin the training that follows."""
    iterations = iterations_of(3 * (training + evaluation))
    assert modes(iterations) == "tititi"
    assert all("update" not in phases_ns(each) for each in iterations if not each.training)
    assert (phases_ns(iterations[2])["update"], phases_ns(iterations[2])["backward"]) == (update_ns, 10)


@pytest.mark.parametrize("preview", ["eval9 . ", "teach9 eval9 "])
@pytest.mark.parametrize("training", [TRAIN, WITHOUT_LOADER])
def test_a_preview_by_an_average_is_inference(preview: str, training: str) -> None:
    iterations = iterations_of(2 * (2 * training + preview) + training)
    assert modes(iterations).replace("ii", "i") == "ttittit"
    assert len({frozenset(phases_ns(each).items()) for each in iterations if each.training}) == 1


@pytest.mark.parametrize("text", [
    "data eval . data eval", "eval . eval", "data fwd fwd2 . data fwd fwd2", "copy eval . copy eval"])
def test_alone_each_fetch_or_forward_is_an_inference(text: str) -> None:
    first, second = iterations_of(text)
    assert modes([first, second]) == "ii"
    assert first.end_ns == second.start_ns


def test_skipped_steps_end_at_the_next_fetch() -> None:
    assert [end - begin for begin, end in edges(WHOLE + SKIPPED + WHOLE + 2 * SKIPPED + WHOLE)] == [
        50, 40, 50, 40, 40, 50]
    later = "data0 " + WHOLE.replace("data", "data101")  # in another epoch
    assert [end - begin for begin, end in edges(WHOLE + SKIPPED + "last . " + 2 * later)] == [50, 50, 60, 60]


def test_what_only_the_first_forwards_call_begins_no_inference() -> None:
    iterations = iterations_of("eval3 eval2 eval2 eval3 eval2 eval2 " + 200 * "eval eval2 eval2 ")
    assert modes(iterations) == "i" * 202
    assert {each.host_ns for each in iterations} == {30}


def test_events_follow_the_slices() -> None:
    slices = tape("data fwd . bwd step data fwd . bwd step")
    for each in slices:
        each.start_event, each.end_event = 2 * each.start_ns, 2 * each.end_ns
    segmenter = Segmenter()
    for iteration in (*segmenter.feed(slices), *segmenter.finish()):
        for span in (iteration, *iteration.intervals):
            assert (span.start_device_ns, span.end_device_ns) == (2 * span.start_ns, 2 * span.end_ns)


def test_iterations_are_known_before_the_end() -> None:
    assert len(Segmenter().feed(tape("fwd bwd " * (UNDECIDED + 10)))) > UNDECIDED
    assert modes(Segmenter().feed(tape("data eval " * (UNDECIDED + 1)))) == "i" * (UNDECIDED - 1)
    segmenter = Segmenter()  # a late step shows that there is an optimizer
    segmenter.feed(tape("data fwd bwd " * (UNDECIDED + 1) + "step "))
    more = segmenter.feed(tape(4 * "data fwd bwd data fwd bwd step "))
    assert [Counter(interval.phase for interval in each.intervals)["backward"] for each in more[1:]] == [2, 2, 2]
    segmenter = Segmenter()  # forwards that look like trainings are waited for
    assert not segmenter.feed(tape("fwd " * (2 * UNDECIDED)))
    assert modes([*segmenter.feed(tape("bwd step")), *segmenter.finish()]) == "t"


def test_work_at_a_marked_end_belongs_to_no_iteration() -> None:
    now = count(0, 10)
    recorder = SpanRecorder(lambda: next(now))
    recorder.on = True
    for _ in range(3):
        recorder.end_iteration(lambda: [next(now) for _ in range(5)] and None)
    iterations = Segmenter(ends_marked=True).feed(recorder.take())
    assert [(each.start_ns, each.end_ns) for each in iterations] == [(60, 70), (130, 140)]


WORDS = st.lists(st.sampled_from([
    ".", "data", "data0", "batch", "last", "copy", "fwd", "fwd2", "eval", "eval9", "bad", "teach", "loss", "bwd",
    "step", "step51", "tidy", "comm", "comp", "fwd< loss >fwd", "step< clos< fwd >clos< bwd >clos >step",
    "bwd< step >bwd", "tidy1", "teach1", "free", "tran< fwd >tran< bwd >tran", "tran",
]), max_size=80)


class TestAnyStream:
    @given(WORDS, st.booleans())
    def test_iterations_do_not_overlap_and_have_their_intervals_inside(self, words: list[str], marked: bool) -> None:
        iterations = iterations_of(" ".join(words) + (" end" if marked else ""))
        for before, after in pairwise(iterations):
            assert before.end_ns <= after.start_ns
        for iteration in iterations:
            times = [iteration.start_ns]
            for interval in iteration.intervals:
                times += [interval.start_ns, interval.end_ns]
            assert [*times, iteration.end_ns] == sorted([*times, iteration.end_ns])

    @given(WORDS, st.lists(st.integers(0, 80)))
    def test_parts_give_what_the_whole_gives(self, words: list[str], cuts: list[int]) -> None:
        slices = tape(" ".join(words))
        segmenter = Segmenter()
        done: list[Iteration] = []
        for begin, end in pairwise(sorted([0, *(min(cut, len(slices)) for cut in cuts), len(slices)])):
            done += segmenter.feed(slices[begin:end])
            segmenter.so_far()
        assert [*done, *segmenter.finish()] == iterations_of(" ".join(words))

    @given(WORDS)
    def test_every_step_is_in_one_iteration_of_training(self, words: list[str]) -> None:
        text = " ".join(words)
        trainings = [each for each in iterations_of(text) if each.training]
        for step in tape(text):
            if step.kind is Kind.STEP and step.begins:
                assert sum(each.start_ns <= step.start_ns < each.end_ns for each in trainings) == 1


def starts(text: str) -> list[int]:
    """Return the indices of the forwards that begin iterations; a word is a model, in capitals one of its methods."""
    recognizer, begun = InferenceStarts(), list[int]()
    for index, word in enumerate(text.split()):
        forward = Slice(Kind.FORWARD, index, index, ord(word.lower()), grad=False, method=word.isupper())
        expected = recognizer.begins(forward.owner, is_method=forward.method)
        taken = [each.start_ns for each in recognizer.take(forward)]
        assert (index in taken) >= expected
        begun += taken
    return begun


@pytest.mark.parametrize(("text", "expected"), [
    ("a a a", [0, 1, 2]),
    ("e d d d e d d e", [0, 4, 7]),
    ("E e e e E e e e", [0, 4]),
    ("e" + 200 * " d" + " e" + 3 * " d" + " e" + 1000 * " d" + " e", [0, 201, 205, 1206]),  # steps of any number
    ("a A A A", [0, 1, 2, 3]),  # a method takes the place of a first call
    ("a A a A a A", [0, 1, 3, 5]),
    # A method is recorded as one from its third call on; before, the modules that it calls are forwards.
    (2 * (" s e" + 8 * " m") + 20 * (" M" + 8 * " m"), [0, 10, *range(20, 200, 9)]),
    ("p" + 300 * " a", list(range(301))),  # a preparation
    ("a" + 256 * " b", [0]), ("a" + 257 * " b", list(range(258))),
    (" ".join(chr(0x4e00 + index) for index in range(1000)), [0]),  # forwards that never recur
])
def test_forwards_that_begin_an_inference(text: str, expected: list[int]) -> None:
    assert starts(text) == expected
