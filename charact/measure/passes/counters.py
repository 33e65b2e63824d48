"""Counter pass: iterations during which counters are sampled, and passes of sources that need their own."""

from collections.abc import Sequence
from typing import Any

from charact.execution.loop import Loop
from charact.measure.counters._support.phase_spans import PhaseTimeline, drawable
from charact.measure.counters._support.protocol import (
    CounterSource,
    PassSource,
    Rows,
    UnavailableError,
    outcome,
    why_unavailable,
)
from charact.measure.passes.sampler import Sampler, failed

MIN_SECONDS = 1.0
"""Shortest duration in seconds: devices average utilization over up to 1 s, GPM metrics over 0.1 s."""
MIN_ITERATIONS = 2


def counter_pass(loop: Loop, sources: Sequence[CounterSource]) -> tuple[Rows, dict[str, Any]]:
    """Return rows of the table `counters` for some iterations, and facts about the pass.

    The facts are the number of iterations, the duration, `spans` (start and end since counting began, phase; of the
    first iterations) and the outcome of each source. Sources that need their own pass run afterwards.

    *Error*: a sample covers the time since the previous one. Short phases need many samples.
    """
    timeline = PhaseTimeline(loop.case.device)
    sampler = Sampler(sources, loop.case.device)
    num_iterations = 0
    try:
        sampler.start()
        while num_iterations < MIN_ITERATIONS or sampler.elapsed_s() < MIN_SECONDS:
            loop.iteration(timeline)
            num_iterations += 1
        spans = timeline.spans()
        duration_s = sampler.elapsed_s()
    except BaseException:
        sampler.abandon()
        raise
    rows = sampler.stop(lambda: spans)
    outcomes = sampler.outcomes
    for source in sources:
        if source.taken == "own pass":
            found, outcomes[source.name] = _own_pass(loop, source)  # type: ignore[arg-type]  # what `taken` says
            rows += found
    return rows, {"num_iterations": num_iterations, "duration_s": duration_s, "sources": outcomes,
                  "spans": drawable(spans, sampler.begun_ns)}


def _own_pass(loop: Loop, source: PassSource) -> tuple[Rows, dict[str, Any]]:
    unavailable = why_unavailable(source, loop.case.device)
    if unavailable is not None:
        return [], outcome(unavailable)
    try:
        found = source.take(loop)
    except UnavailableError as error:
        return [], outcome(error.unavailable)
    except Exception as error:  # an optional instrument, whose failure is reported
        return [], failed(error)
    return ([{"phase": None, "time_s": None, "rank": 0, "kernel": None, "source": source.name, **row}
             for row in found.rows], outcome(None, found.missing) | dict(found.facts))
