"""Lines of stack samples: in slow iterations, with their texts, and whether the program waited in them."""

from pathlib import Path
from typing import Any

import pytest

from charact.core.timeline import Interval, Iteration
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.event_log_reader import EventLogReader, read_note
from charact.measure.script.spans.frame_samples import Samples
from charact.measure.script.spans.recorder import SpanRecorder
from charact.measure.script.spans.stack_sampler import FrameSampler
from charact.record.manifest_passes import FramesPass


def iterations_of(walls_ns: list[int]) -> list[Iteration]:
    ends = [sum(walls_ns[:number + 1]) for number in range(len(walls_ns))]
    return [Iteration(end - wall, end, [Interval("forward", end - wall, end - 1, 1)])
            for wall, end in zip(walls_ns, ends, strict=True)]


def facts_of(samples: Samples, iterations: list[Iteration], **fracs: float) -> FramesPass:
    facts = samples.facts(iterations, iterations, fracs, iterations)
    assert facts is not None
    return facts


def test_slow_iterations_have_lines_of_all_phases() -> None:
    samples = Samples([{"places": [["a.py:1", "f", None], ["a.py:2", "g", None]], "interval_s": 0.1,
                        "samples": [[5, 0], [35, 0], *([time_ns, 1] for time_ns in range(60, 68)), [109, 1]]}])
    iterations = iterations_of([10] * 6 + [50] + [10] * 6)
    facts = facts_of(samples, iterations, forward=1.0)
    assert facts.num_slow_samples == 9  # from 60 to 110
    assert [(frame.place, frame.num_samples) for frame in facts.slow_frames] == [("a.py:2", 9)]
    assert not facts_of(samples, iterations_of([10] * 13), forward=1.0).slow_frames


def test_lines_between_iterations_begin_with_the_first_and_are_of_no_pass() -> None:
    samples = Samples([{
        "places": [["a.py:1", "f", None], ["a.py:2", "g", None], ["a.py:3", "h", None]], "interval_s": 0.1,
        "samples": [*([time_ns, 0] for time_ns in range(6)), *([time_ns, 1] for time_ns in range(30, 37)),
                    [45, 2], [46, 2], [61, 1]]}])
    every = [Iteration(start, start + 10, []) for start in (10, 20, 50)]
    facts = samples.facts(every, every, {"other": 1.0, "outside": 0.5}, every, [(44, 49)])
    assert facts is not None
    assert facts.num_outside_samples == 16
    assert [(frame.place, frame.num_samples) for frame in facts.between_frames] == [("a.py:2", 8)]


def test_waiting_is_the_mean_of_the_known_shares_and_texts_belong_to_the_lines() -> None:
    samples = Samples([
        {"places": [["a.py:1", "f", None]], "samples": [[1, 0], [2, 0]]},  # of an older version
        {"places": [["a.py:2", "g", None]], "samples": [[3, 1], [4, 1], [5, 1]], "texts": ["save()"],
         "waiting": [1.0, None, 0.5]}])
    facts = facts_of(samples, iterations_of([10]), forward=1.0)
    assert [(frame.place, frame.text, frame.waiting_frac) for frame in facts.forward_frames] == [
        ("a.py:2", "save()", 0.75), ("a.py:1", None, None)]


@pytest.mark.parametrize("waiting", [[1.5], ["no"]])
def test_shares_of_a_note_are_checked(waiting: list[Any]) -> None:
    line = {"note": "frames", "places": [], "samples": [], "waiting": waiting}
    with pytest.raises(ValueError, match="waiting"):
        read_note(str(line).replace("'", '"').encode())


@pytest.mark.clock
@pytest.mark.parametrize(("sleep_s", "num_terms"), [(0.03, 2_000_000), (0.2, 10_000_000)])
def test_a_line_that_sleeps_waits_and_one_that_computes_does_not(tmp_path: Path, sleep_s: float, num_terms: int
                                                                 ) -> None:
    """The sum keeps the GIL, also for several samples."""
    recorder = SpanRecorder()
    recorder.on = True
    waits, computes = f"time.sleep({sleep_s})", f"sum(range({num_terms}))"
    (tmp_path / "own.py").write_text('import time\n'
                                     'def both(until_s):\n'
                                     '    while time.monotonic() < until_s:\n'
                                     f'        {waits}\n'
                                     f'        {computes}\n')
    program: dict[str, Any] = {"__name__": "__main__"}
    exec(compile((tmp_path / "own.py").read_text(), str(tmp_path / "own.py"), "exec"), program)
    sampler = FrameSampler(recorder, EventLogWriter(tmp_path))
    sampler.start()
    program["both"](program["time"].monotonic() + 2)
    sampler.stop()
    whole = [Iteration(0, 2**62, [])]
    facts = Samples(EventLogReader(tmp_path).notes()).facts(whole, whole, {"other": 1.0})
    assert facts is not None
    shares = {frame.text: frame.waiting_frac for frame in facts.frames}
    assert shares[waits] > 0.6
    assert shares[computes] < 0.3
