"""Runner of data-parallel cases: the timing pass on every rank, a case of the record for each."""

from collections.abc import Sequence
from typing import Any

from charact.core.observer import Observer
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry, failure
from charact.execution.interrupt import Interrupt
from charact.measure.passes.runner import PASSES
from charact.measure.passes.timing import StopRule
from charact.measure.ranks.timed_case import time_on_ranks
from charact.record.writer import RunWriter

_ONLY_TIMED = "on several ranks only the timing pass runs: charact run --nproc has the others"


def run_rank_cases(cases: Sequence[Case], rule: StopRule, num_threads: int, writer: RunWriter, observer: Observer,
                   interrupt: Interrupt) -> None:
    """Time each case on its ranks and write a case for each rank; continue after a case that fails.

    A signal ends the run and keeps the finished cases; `interrupt.signal` is its number.

    Args:
        cases: in order.
        rule: stop rule.
        num_threads: threads inside an operator, of each rank.
        writer: of the record.
        observer: progress callbacks.
        interrupt: signal handler.
    """
    for number, case in enumerate(cases, start=1):
        observer.case_started(case.id, number, len(cases))
        ending = _run(case, rule, num_threads, writer, observer, interrupt)
        observer.case_ended(str(ending["status"]), ending["reason"])
        if interrupt.signal is not None:
            return


def _run(case: Case, rule: StopRule, num_threads: int, writer: RunWriter, observer: Observer,
         interrupt: Interrupt) -> dict[str, Any]:
    """Time a case, add it to the record, and return its status and reason."""
    entry = case_entry(case)
    ended: dict[str, Any]
    try:
        with interrupt.allowed():
            observer.pass_started("timing")
            timings = time_on_ranks(case, rule, num_threads)
    except KeyboardInterrupt:
        ended = interrupt.ending()
    except Exception as error:
        ended = failure(error, case.precision)
    else:
        for rank, timing in enumerate(timings):
            own = {"case": f"{case.id}-rank{rank}", "rank": rank} if case.parallel else {}
            for name in PASSES:
                entry.passes.end(name, "skipped", _ONLY_TIMED)
            entry.passes["timing"] = timing.facts
            if case.parallel:
                entry.passes["collectives"] = timing.collectives
            entry.update(**own, num_parameters=timing.num_parameters)
            writer.add_case(entry, timing.tables)
        return {"status": "ok", "reason": None}
    entry.update(**ended)
    for name in PASSES:
        entry.passes.end(name, "skipped", ended["reason"])
    writer.add_case(entry, {})
    return ended
