"""Lines of stack samples by phase, from notes that are written by hand."""

from typing import Any

import pytest

from charact.core.timeline import Interval, Iteration
from charact.measure.script.spans.event_log_reader import read_note
from charact.measure.script.spans.frame_samples import NUM_KEPT, Samples
from charact.measure.script.spans.stack_sampler import INTERVAL_S, SPARSE_INTERVAL_S
from charact.record.manifest_passes import Frame, FramesPass


def iteration(start_ns: int, end_ns: int, *intervals: tuple[str, int, int]) -> Iteration:
    return Iteration(start_ns, end_ns, [Interval(phase, start, end, 0) for phase, start, end in intervals])


def note(samples: list[Any], libraries: Any = (None,), **more: Any) -> dict[str, Any]:
    """A note with lines `a.py:0`, ... of functions that call these libraries."""
    return {"places": [[f"a.py:{number}", "f", library] for number, library in enumerate(libraries)],
            "samples": samples, **more}


def facts_of(notes: list[dict[str, Any]], iterations: list[Iteration], fracs: dict[str, float], *more: Any,
             every: list[Iteration] | None = None) -> FramesPass:
    facts = Samples(notes).facts(iterations, iterations if every is None else every, fracs, *more)
    assert facts is not None
    return facts


def test_samples_belong_to_the_phase_at_their_time() -> None:
    iterations = [iteration(100, 200, ("data", 105, 110), ("forward", 110, 150), ("loss", 150, 160)),
                  iteration(300, 400, ("loss", 300, 320))]
    times_ns = [50, 100, 101, 105, 109, 110, 149, 150, 161, 199, 200, 250, 310, 321, 400]
    facts = facts_of([note([[time_ns, time_ns % 2] for time_ns in times_ns], [None, "library.g"])], iterations,
                     {"other": 0.01, "data": 0.0, "outside": 0.0, "forward": 0.0, "loss": 0.0},
                     every=[iteration(0, 60), *iterations])
    assert facts.interval_s == INTERVAL_S
    assert facts.num_samples == 5  # 100, 101, 161, 199 and 321
    assert facts.frames == [Frame("a.py:1", "f", 4, "library.g"), Frame("a.py:0", "f", 1)]
    assert (facts.num_data_samples, facts.num_forward_samples, facts.num_loss_samples) == (2, 2, 2)
    assert facts.num_outside_samples == 3  # 200, 250 and 400: an iteration of another case has 50
    assert [frame.place for frame in facts.forward_frames] == ["a.py:0", "a.py:1"]


def test_notes_add_up_and_those_of_older_versions_know_less() -> None:
    assert Samples().facts([iteration(0, 9)], [], {"other": 1.0}) is None
    notes = [note([[1, 0], [2, 0]], delay_s=1e-5), note([[3, 1], [4, 1], [5, 1]], texts=["save()"], loops=[True],
                                                        waiting=[1.0, None, 0.5], delay_s=2e-4), note([], delay_s=3e-5)]
    facts = facts_of(notes, [iteration(0, 9)], {"other": 1.0})
    assert facts.delay_s == 3e-5  # the median
    assert [(frame.num_samples, frame.text, frame.in_loop, frame.waiting_frac) for frame in facts.frames] == [
        (3, "save()", True, 0.75), (2, None, None, None)]


def test_only_the_most_frequent_lines_are_named() -> None:
    facts = facts_of([note([[time_ns, time_ns % 30] for time_ns in range(900)], [None] * 30)], [iteration(0, 900)],
                     {"other": 1.0}, every=[])
    assert (facts.num_samples, len(facts.frames)) == (900, NUM_KEPT)


ADAM = "torch.optim.adam.Adam.step"


@pytest.mark.parametrize(("libraries", "num_own"), [
    ([None] * 5 + [ADAM] * 3, 8), ([ADAM] * 9, 0), ([None] * 4 + [ADAM] * 9, 0)])
def test_an_update_has_lines_if_the_program_s_own_code_runs_in_it(libraries: list[str | None], num_own: int) -> None:
    facts = facts_of([note([[number, number] for number in range(len(libraries))], libraries)],
                     [iteration(0, 50, ("update", 0, 40))], {"update": 0.8, "other": 0.0})
    assert (facts.num_update_samples, len(facts.update_frames)) == (num_own, num_own)


@pytest.mark.parametrize(("num_samples", "other_frac", "interval_s", "num_shown", "num_lines"), [
    (5, 0.11, SPARSE_INTERVAL_S, 5, 1), (5, 0.1, SPARSE_INTERVAL_S, 0, 0), (4, 0.5, SPARSE_INTERVAL_S, 4, 0),
    (4, 0.05, INTERVAL_S, 4, 1)])
def test_sparse_samples_are_named_where_the_phase_is_large(
        num_samples: int, other_frac: float, interval_s: float, num_shown: int, num_lines: int) -> None:
    facts = facts_of([note([[time_ns, 0] for time_ns in range(num_samples)], interval_s=interval_s)],
                     [iteration(0, 9)], {"other": other_frac, "data": 0.9})
    assert (facts.interval_s, facts.num_data_samples) == (interval_s, 0)
    assert (facts.num_samples, len(facts.frames)) == (num_shown, num_lines)


def test_slow_iterations_have_lines_of_all_phases() -> None:
    samples = [[5, 0], [35, 0], *([time_ns, 1] for time_ns in range(60, 68)), [109, 1]]
    for slow_ns, num_slow in ((50, 9), (10, 0)):
        ends = [10 * number + (slow_ns - 10) * (number > 6) for number in range(1, 14)]
        iterations = [iteration(start, end, ("forward", start, end - 1))
                      for start, end in zip([0, *ends], ends, strict=False)]
        facts = facts_of([note(samples, [None, None], interval_s=0.1)], iterations, {"forward": 1.0}, iterations)
        assert facts.num_slow_samples == num_slow  # from 60 to 110
        assert [(frame.place, frame.num_samples) for frame in facts.slow_frames] == [("a.py:1", 9)][:num_slow]


def test_lines_between_iterations_begin_with_the_first_and_are_of_no_pass() -> None:
    samples = [*([time_ns, 0] for time_ns in range(6)), *([time_ns, 1] for time_ns in range(30, 37)), [45, 2],
               [46, 2], [61, 1]]
    every = [iteration(start, start + 10) for start in (10, 20, 50)]
    facts = facts_of([note(samples, [None] * 3, interval_s=0.1)], every, {"other": 1.0, "outside": 0.5}, every,
                     [(44, 49)])
    assert facts.num_outside_samples == 16
    assert [(frame.place, frame.num_samples) for frame in facts.between_frames] == [("a.py:1", 8)]


@pytest.mark.parametrize("waiting", [[1.5], ["no"]])
def test_shares_of_a_note_are_checked(waiting: list[Any]) -> None:
    line = {"note": "frames", "places": [], "samples": [], "waiting": waiting}
    with pytest.raises(ValueError, match="waiting"):
        read_note(str(line).replace("'", '"').encode())
