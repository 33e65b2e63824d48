"""Iterations and phases of streams of slices that are written by hand, to the nanosecond."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.timeline import Iteration
from charact.measure.script.spans.recorder import Kind, Slice
from charact.measure.script.spans.segmenter import UNDECIDED, Segmenter

KINDS = {
    "data": Kind.FETCH, "last": Kind.EXHAUSTED, "copy": Kind.COPY, "fwd": Kind.FORWARD, "eval": Kind.FORWARD,
    "bad": Kind.FORWARD, "teach": Kind.FORWARD, "loss": Kind.LOSS, "bwd": Kind.BACKWARD, "step": Kind.STEP,
    "tidy": Kind.UPDATE, "comm": Kind.COMMUNICATION, "comp": Kind.COMPILE, "clos": Kind.CLOSURE,
    "tran": Kind.TRANSFORM, "free": Kind.UNTRACKED,
}
LONG_NS, GAP_NS = 10, 3
OWNERS = {Kind.FETCH: 100, Kind.FORWARD: 1, Kind.STEP: 50}


def tape(text: str) -> list[Slice]:
    """Slices of 10 ns, one a word; a point is a gap of 3 ns.

    `bwd<` is cut by what follows, `>bwd` goes on after it; `fwd2` has 2 as its owner. `eval` is a forward without
    gradients in evaluation mode, `bad` one with gradients, `teach` one without gradients in training mode.
    """
    slices: list[Slice] = []
    now_ns = 0
    for word in text.split():
        if word == ".":
            now_ns += GAP_NS
            continue
        name = word.strip("<>0123456789")
        kind = KINDS[name]
        digits = word.strip("<>")[len(name):]
        slices.append(Slice(
            kind, now_ns, now_ns + LONG_NS, int(digits) if digits else OWNERS.get(kind, 0),
            grad=name not in ("eval", "teach"), training=name not in ("eval", "bad"), ends=not word.endswith("<"),
            begins=not word.startswith(">")))
        now_ns += LONG_NS
    return slices


def found(text: str) -> list[Iteration]:
    segmenter = Segmenter()
    return [*segmenter.feed(tape(text)), *segmenter.finish()]


def phases_ns(iteration: Iteration) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for one in iteration.intervals:
        sums[one.phase] += one.end_ns - one.start_ns
    sums["other"] += iteration.end_ns - iteration.start_ns - sum(sums.values())
    return {phase: ns for phase, ns in sums.items() if ns}


def modes(iterations: list[Iteration]) -> str:
    return "".join("t" if one.training else "i" for one in iterations)


TRAIN = "data fwd loss bwd step tidy "


class TestTraining:
    def test_an_iteration_goes_from_a_fetch_to_the_next(self) -> None:
        first, second = found("data . fwd loss bwd . step . data fwd loss bwd step tidy .")
        assert (first.training, first.start_ns, first.end_ns) == (True, 0, 59)
        assert phases_ns(first) == {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 10, "other": 9}
        assert (second.start_ns, second.end_ns) == (59, 119)  # the last one ends with its last slice
        assert phases_ns(second) == {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 20}

    def test_without_a_fetch_it_begins_with_a_forward(self) -> None:
        assert [(one.start_ns, one.end_ns) for one in found("fwd bwd step . fwd bwd step")] == [(0, 33), (33, 63)]

    def test_micro_batches_are_one(self) -> None:
        (first, second) = found(2 * ("data fwd bwd " * 3 + "step "))
        assert modes([first, second]) == "tt"
        assert phases_ns(first) == {"data": 30, "forward": 30, "backward": 30, "update": 10}

    def test_an_adversarial_pair_is_one_and_each_has_its_parts(self) -> None:
        pair = "data fwd2 loss bwd fwd1 fwd2 loss bwd step52 fwd2 loss bwd step51 "
        iterations = found(2 * pair)
        assert modes(iterations) == "tt"
        backwards = [one.owner for one in iterations[0].intervals if one.phase == "backward"]
        assert backwards == [52, 52, 51]
        assert [one.owner for one in iterations[0].intervals if one.phase == "forward"] == [2, 1, 2, 2]

    def test_of_several_critic_steps_each_is_one(self) -> None:
        critic, generator = "data fwd2 bwd step52 ", "fwd1 fwd2 bwd step51 "
        iterations = found(2 * (2 * critic + generator))
        assert [len(one.intervals) for one in iterations] == [4, 8, 4, 8]

    def test_fits_one_after_another_share_no_iteration(self) -> None:
        fits = [f"data fwd{number} bwd step{number} tidy . " for number in (51, 52, 53)]
        iterations = found("".join(3 * fit for fit in fits))
        assert [[one.owner for one in iteration.intervals if one.phase == "backward"] for iteration in iterations] == [
            [51], [51], [51], [52], [52], [52], [53], [53], [53]]
        assert {one.end_ns - one.start_ns for one in iterations[:-1]} == {53}

    def test_tasks_that_take_turns_share_no_iteration(self) -> None:
        tasks = ["data fwd1 loss bwd step51 tidy . ", "data fwd2 loss bwd step52 tidy . "]
        epochs = 2 * "".join(tasks) + tasks[0] + "last100 . data0 " + "".join(
            task.replace("data", "data101") for task in tasks[::-1])
        iterations = found(epochs)
        assert modes(iterations) == 7 * "t"
        assert [[one.owner for one in iteration.intervals if one.phase == "forward"] for iteration in iterations] == [
            [1], [2], [1], [2], [1], [2], [1]]

    @pytest.mark.parametrize("second", ["data101 fwd2 loss bwd step52 ", "data fwd1 fwd2 loss bwd step52 "])
    def test_pairs_with_two_loaders_or_a_common_model_are_one(self, second: str) -> None:
        assert modes(found(3 * ("data fwd1 loss bwd step51 " + second))) == "ttt"

    def test_an_optimizer_that_joins_later_shares_its_iterations(self) -> None:
        alone, both = "data fwd bwd step51 ", "data fwd bwd step51 fwd bwd step52 "
        assert [len(one.intervals) for one in found(3 * alone + 3 * both)] == [4, 4, 4, 7, 7, 7]

    def test_closures_are_their_step_s_iteration_and_their_own_phases(self) -> None:
        closure = "clos< tidy >clos< fwd >clos< loss >clos< bwd >clos "
        iterations = found(2 * f"data step< {closure} >step< {closure} >step ")
        assert modes(iterations) == "tt"
        # A closure's own time is a gap: between the forward and the loss it is the loss's, else nobody's.
        assert phases_ns(iterations[0]) == {
            "data": 10, "update": 30 + 20, "forward": 20, "loss": 20 + 20, "backward": 20, "other": 80}

    def test_steps_inside_a_backward_leave_it_whole(self) -> None:
        iterations = found(2 * "data fwd bwd< step51 >bwd< step52 >bwd ")
        assert [(one.start_ns, one.end_ns) for one in iterations] == [(0, 70), (70, 140)]
        assert phases_ns(iterations[0]) == {"data": 10, "forward": 10, "backward": 30, "update": 20}

    def test_a_teacher_is_part_of_it(self) -> None:
        assert modes(found(3 * "data eval9 fwd loss bwd step ")) == "ttt"
        assert modes(found(3 * "eval9 fwd loss bwd step ")) == "ttt"

    def test_the_same_model_without_gradients_in_training_mode_is_too(self) -> None:
        assert modes(found(3 * "fwd2 teach1 bwd step52 fwd1 bwd step51 ")) == "ttt"

    def test_the_end_of_a_loader_is_data_and_begins_nothing(self) -> None:
        iterations = found("data fwd bwd step last . data fwd bwd step last")
        # The gap after the first epoch, such as saving, belongs to no iteration.
        assert [(one.start_ns, one.end_ns) for one in iterations] == [(0, 50), (53, 103)]
        assert phases_ns(iterations[1]) == {"data": 20, "forward": 10, "backward": 10, "update": 10}

    def test_what_comes_before_the_first_is_none_s(self) -> None:
        for before in ("tidy ", "data0 data ", "copy "):
            iterations = found(before + ". data0 " + TRAIN + TRAIN)
            assert modes(iterations) == "tt"
            assert iterations[0].start_ns == 10 * len(before.split()) + 3


class TestUpdatesByHand:
    def test_a_backward_ends_an_iteration_and_what_follows_is_the_update(self) -> None:
        iterations = found("data fwd loss bwd . tidy . data fwd loss bwd . tidy")
        assert [(one.start_ns, one.end_ns) for one in iterations] == [(0, 56), (56, 109)]
        assert phases_ns(iterations[0]) == {"data": 10, "forward": 10, "loss": 10, "backward": 10, "update": 16}
        assert [one.inferred for one in iterations[0].intervals] == [False, False, False, False, True, False, True]

    def test_without_a_loader_what_follows_may_make_the_next_batch(self) -> None:
        iterations = found("fwd loss bwd . tidy . fwd loss bwd . tidy")
        assert [(one.start_ns, one.end_ns) for one in iterations] == [(0, 46), (46, 89)]
        assert phases_ns(iterations[0]) == {"forward": 10, "loss": 10, "backward": 10, "update": 10, "other": 6}

    def test_what_lies_between_two_backwards_is_not_told_apart(self) -> None:
        iterations = found(3 * "bwd . . ")
        assert modes(iterations) == "ttt"
        assert phases_ns(iterations[1]) == {"backward": 10, "other": 6}
        assert phases_ns(found(3 * "loss . bwd . ")[1]) == {"loss": 10, "backward": 10, "other": 6}
        assert phases_ns(found(3 * "data . bwd . ")[1]) == {"data": 10, "forward": 3, "backward": 10, "update": 3}

    def test_backwards_of_one_forward_are_one_iteration_without_an_optimizer(self) -> None:
        iterations = found("fwd bwd . bwd . bwd . " * 5)
        assert modes(iterations) == "t" * 5
        assert phases_ns(iterations[1])["backward"] == 3 * LONG_NS
        assert modes(found("bwd . bwd . bwd . ")) == "ttt"  # their forwards were not recorded

    def test_it_is_known_long_before_the_end(self) -> None:
        slices = tape("fwd bwd " * (UNDECIDED + 10))
        assert len(Segmenter().feed(slices)) > UNDECIDED

    def test_a_late_step_shows_that_there_is_an_optimizer(self) -> None:
        segmenter = Segmenter()
        segmenter.feed(tape("data fwd bwd " * (UNDECIDED + 1) + "step "))
        more = segmenter.feed(tape(4 * "data fwd bwd data fwd bwd step "))
        assert [Counter(one.phase for one in it.intervals)["backward"] for it in more[1:]] == [2, 2, 2]


class TestPredictions:
    def test_alone_each_fetch_or_forward_is_one(self) -> None:
        for text in ("data eval . data eval", "eval . eval", "data fwd fwd2 . data fwd fwd2", "copy eval . copy eval"):
            iterations = found(text)
            assert modes(iterations) == "ii", text
            assert iterations[0].end_ns == iterations[1].start_ns

    def test_an_encoder_and_the_steps_of_a_decoder_are_one(self) -> None:
        iterations = found(10 * ("eval" + 8 * " eval2" + " . "))
        assert [one.end_ns - one.start_ns for one in iterations] == 9 * [93] + [90]

    def test_what_only_the_first_ones_call_begins_no_others(self) -> None:
        begin = "eval3 eval2 eval2 eval3 eval2 eval2 "
        iterations = found(begin + 200 * "eval eval2 eval2 ")
        assert modes(iterations) == "i" * 202
        assert {one.end_ns - one.start_ns for one in iterations} == {30}

    def test_they_are_given_before_the_end(self) -> None:
        assert modes(Segmenter().feed(tape("data eval " * (UNDECIDED + 1)))) == "i" * (UNDECIDED - 1)

    def test_forwards_that_look_like_trainings_are_waited_for(self) -> None:
        segmenter = Segmenter()
        assert not segmenter.feed(tape("fwd " * (2 * UNDECIDED)))
        assert modes([*segmenter.feed(tape("bwd step")), *segmenter.finish()]) == "t"

    @pytest.mark.parametrize("validation", [
        "data eval loss data eval loss last ", "eval loss eval loss ", "data bad loss data bad loss ", "bad bad ",
        "copy eval copy eval ",
    ])
    def test_a_validation_is_not_the_training_s(self, validation: str) -> None:
        with_loader = "data0 " + TRAIN + TRAIN if validation.startswith("data") else 2 * TRAIN.removeprefix("data ")
        iterations = found(2 * (with_loader + ". " + validation))
        assert modes(iterations) == "ttiittii"
        assert all(set(phases_ns(one)) <= {"data", "forward", "loss"} for one in iterations if not one.training)
        assert all("backward" in phases_ns(one) for one in iterations if one.training)

    def test_a_full_batch_evaluation_is_not_the_training_s(self) -> None:
        """Nothing is fetched, and gradients are zeroed, or a step with a closure begins, before the next forward."""
        closure = "step< clos< tidy >clos< fwd >clos< loss >clos< bwd >clos >step "
        for training in ("tidy fwd loss bwd step ", closure):
            iterations = found(3 * (training + ". eval loss . "))
            assert modes(iterations) == "tititi", training
            # Zeroed gradients, or the step around the closure, begin the training that follows.
            assert all("update" not in phases_ns(one) for one in iterations if not one.training)
            assert phases_ns(iterations[2])["update"] == (20 if training is not closure else 30)

    def test_a_prediction_from_the_batch_of_the_training_is_part_of_it(self) -> None:
        """Such as of pseudo-labels."""
        for batch in ("data ", "data100 data101 "):
            iterations = found(3 * (batch + "eval fwd loss bwd step "))
            assert modes(iterations) == "ttt"
            assert phases_ns(iterations[1])["data"] == 10 * len(batch.split())
            assert phases_ns(iterations[1])["forward"] == 20

    def test_a_validation_before_the_first_training_is_one(self) -> None:
        assert modes(found("data eval data eval " + TRAIN + TRAIN)) == "iitt"


class TestGaps:
    def check(self, text: str, **phases: int) -> None:
        """Hold the first of two same iterations to its phases."""
        assert phases_ns(found(f"{text} {text}")[0]) == phases

    def test_from_forward_to_backward_is_the_loss(self) -> None:
        self.check("data . fwd . bwd step", data=10, forward=10, loss=3, backward=10, update=10, other=3)

    def test_even_where_gradients_are_set_to_zero_in_between(self) -> None:
        self.check("data fwd . tidy . bwd step", data=10, forward=10, loss=6, backward=10, update=20)

    def test_between_two_backwards_too(self) -> None:
        self.check("data fwd bwd . bwd step", data=10, forward=10, loss=3, backward=20, update=10)

    def test_after_a_recorded_loss_is_nobody_s(self) -> None:
        """The program does other work there, such as preparing the next batch."""
        self.check("data fwd loss . bwd step", data=10, forward=10, loss=10, backward=10, update=10, other=3)
        self.check("data fwd< loss >fwd . bwd step", data=10, forward=20, loss=10, backward=10, update=10, other=3)
        self.check("data fwd loss bwd . bwd step", data=10, forward=10, loss=10, backward=20, update=10, other=3)
        self.check("data fwd loss fwd2 . bwd step", data=10, forward=20, loss=13, backward=10, update=10)

    def test_between_forwards_is_nobody_s(self) -> None:
        self.check("data fwd . fwd2 bwd step", data=10, forward=20, backward=10, update=10, other=3)

    def test_a_forward_that_was_not_seen_fills_the_gap_before_the_loss(self) -> None:
        self.check("data . tidy . loss . bwd step", data=10, update=20, forward=6, loss=10, backward=10, other=3)
        self.check("data . tidy . bwd step", data=10, update=20, forward=6, backward=10)
        self.check("data . copy . tidy . bwd step", data=20, update=20, forward=6, backward=10, other=3)
        self.check("data . bwd step", data=10, forward=3, backward=10, update=10)
        self.check("data . comp . bwd step", data=10, forward=6, backward=10, update=10, other=10)

    def test_and_begins_the_iteration_where_nothing_is_fetched(self) -> None:
        iterations = found("bwd step tidy . . bwd step tidy . . bwd step tidy")
        assert [(one.start_ns, one.end_ns) for one in iterations] == [(0, 30), (30, 66), (66, 102)]
        assert phases_ns(iterations[1]) == {"forward": 6, "backward": 10, "update": 20}
        assert phases_ns(found("loss bwd step . loss bwd step")[1])["forward"] == 3

    def test_an_inferred_loss_belongs_to_the_optimizer_of_its_backward(self) -> None:
        first, _ = found(2 * "data fwd . bwd step51 fwd2 . bwd step52 ")
        assert [one.owner for one in first.intervals if one.phase == "loss"] == [51, 52]

    def test_compilation_is_told_apart(self) -> None:
        first, _ = found("data fwd< comp >fwd loss bwd< comp >bwd step " + TRAIN)
        assert phases_ns(first) == {
            "data": 10, "forward": 20, "loss": 10, "backward": 20, "update": 10, "other": 20}
        assert [one.compiling for one in first.intervals].count(True) == 2

    def test_events_follow_the_slices(self) -> None:
        slices = tape("data fwd . bwd step data fwd . bwd step")
        for one in slices:
            one.start_event, one.end_event = 2 * one.start_ns, 2 * one.end_ns
        segmenter = Segmenter()
        for iteration in (*segmenter.feed(slices), *segmenter.finish()):
            for one in (iteration, *iteration.intervals):
                assert (one.start_device_ns, one.end_device_ns) == (2 * one.start_ns, 2 * one.end_ns)


WORDS = st.lists(st.sampled_from([
    ".", "data", "data0", "last", "copy", "fwd", "fwd2", "eval", "eval9", "bad", "teach", "loss", "bwd", "step",
    "step51", "tidy", "comm", "comp", "fwd< loss >fwd", "step< clos< fwd >clos< bwd >clos >step", "bwd< step >bwd",
    "tidy1", "teach1", "free", "tran< fwd >tran< bwd >tran", "tran",
]), max_size=80)  # fmt: skip


class TestAnyStream:
    @given(WORDS)
    def test_iterations_do_not_overlap_and_their_stretches_lie_inside(self, words: list[str]) -> None:
        iterations = found(" ".join(words))
        for before, after in pairwise(iterations):
            assert before.end_ns <= after.start_ns
        for iteration in iterations:
            assert iteration.start_ns <= iteration.end_ns
            edges = [iteration.start_ns]
            for one in iteration.intervals:
                edges += [one.start_ns, one.end_ns]
            assert [*edges, iteration.end_ns] == sorted([*edges, iteration.end_ns])

    @given(WORDS, st.lists(st.integers(0, 80)))
    def test_pieces_give_what_the_whole_gives(self, words: list[str], cuts: list[int]) -> None:
        slices = tape(" ".join(words))
        segmenter = Segmenter()
        done: list[Iteration] = []
        for begin, end in pairwise(sorted([0, *(min(cut, len(slices)) for cut in cuts), len(slices)])):
            done += segmenter.feed(slices[begin:end])
            segmenter.so_far()
        assert [*done, *segmenter.finish()] == found(" ".join(words))

    @given(WORDS)
    def test_every_step_is_in_one_iteration_of_training(self, words: list[str]) -> None:
        text = " ".join(words)
        steps = [one for one in tape(text) if one.kind is Kind.STEP and one.begins]
        trainings = [one for one in found(text) if one.training]
        for step in steps:
            assert sum(one.start_ns <= step.start_ns < one.end_ns for one in trainings) == 1


class TestSkippedSteps:
    SKIPPED, WHOLE = "data fwd bwd tidy1 ", "data fwd bwd step tidy1 "

    def test_end_at_the_next_fetch(self) -> None:
        iterations = found(self.WHOLE + self.SKIPPED + self.WHOLE + 2 * self.SKIPPED + self.WHOLE)
        assert modes(iterations) == "tttttt"
        assert [iteration.end_ns - iteration.start_ns for iteration in iterations] == [50, 40, 50, 40, 40, 50]

    @pytest.mark.parametrize("zeroed", ["data tidy1 fwd bwd ", "tidy1 data fwd bwd "])
    def test_end_there_wherever_gradients_are_zeroed(self, zeroed: str) -> None:
        assert modes(found(3 * (zeroed + "step " + zeroed))) == 5 * "t"  # the last has no step, and may go on

    def test_end_there_in_another_epoch(self) -> None:
        later = "data0 " + self.WHOLE.replace("data", "data101")
        iterations = found(self.WHOLE + self.SKIPPED + "last . " + later + later)
        assert [iteration.end_ns - iteration.start_ns for iteration in iterations] == [50, 50, 60, 60]

    @pytest.mark.parametrize("micro", ["data fwd bwd ", "data fwd bwd tidy "])
    def test_are_not_accumulated_gradients(self, micro: str) -> None:
        """Even if they are clipped after each backward."""
        assert modes(found(3 * (3 * micro + "step tidy1 "))) == "ttt"

    def test_are_not_two_losses(self) -> None:
        assert modes(found(3 * "data fwd bwd tidy1 data101 fwd2 bwd step tidy1 ")) == "ttt"


class TestOtherModels:
    @pytest.mark.parametrize("preview", ["eval9 . ", "teach9 eval9 "])
    @pytest.mark.parametrize("training", [TRAIN, TRAIN.removeprefix("data ")])
    def test_a_preview_by_an_average_is_inference(self, preview: str, training: str) -> None:
        iterations = found(2 * (2 * training + preview) + training)
        assert modes(iterations).replace("ii", "i") == "ttittit"
        assert len({frozenset(phases_ns(one).items()) for one in iterations if one.training}) == 1

    def test_a_teacher_stays_one_in_a_second_fit(self) -> None:
        fits = ["eval9 fwd1 bwd step51 ", "eval8 fwd2 bwd step52 ", "teach7 fwd3 bwd step53 "]
        assert modes(found("".join(3 * fit for fit in fits))) == 9 * "t"

    def test_an_evaluation_in_training_mode_before_a_closure_is_inference(self) -> None:
        step = "step< clos< tidy1 >clos< fwd >clos< loss >clos< bwd >clos >step . "
        iterations = found(4 * (step + "teach1 loss . "))
        assert modes(iterations) == 4 * "ti"
        assert all(phases_ns(one)["backward"] == 10 for one in iterations if one.training)


class TestTransforms:
    """`torch.func`: a call computes a forward and a backward."""

    def test_their_own_time_is_the_forward_s_then_the_loss_s_then_the_backward_s(self) -> None:
        first, _ = found(2 * "tran< fwd >tran< loss >tran< bwd >tran . free ")
        assert phases_ns(first) == {"forward": 20, "loss": 30, "backward": 20, "update": 10, "other": 3}

    def test_without_modules_too(self) -> None:
        first, _ = found(2 * "data tran< bwd >tran step ")
        assert phases_ns(first) == {"data": 10, "forward": 10, "backward": 20, "update": 10}
        first, _ = found(2 * "data tran bwd step ")  # vjp, and its function
        assert phases_ns(first) == {"data": 10, "forward": 10, "backward": 10, "update": 10}

    def test_a_block_without_gradients_is_an_update_only_without_optimizer_and_after_a_backward(self) -> None:
        for block, extra in (("data free fwd bwd step ", {"data": 10, "update": 10, "other": 10}),
                             ("fwd bwd step free ", {"update": 10, "other": 10}),
                             ("fwd bwd . free . ", {"update": 10, "other": 6})):
            assert phases_ns(found(4 * block)[1]) == {"forward": 10, "backward": 10, **extra}
