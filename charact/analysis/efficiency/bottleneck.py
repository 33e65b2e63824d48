"""Bottleneck of each case: a verdict with evidence, the potential speedup, and one thing to try."""

import math
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.script_attribution import is_imported, is_watched
from charact.analysis.efficiency import bottleneck_text as words
from charact.analysis.efficiency.bottleneck_text import Situation
from charact.analysis.efficiency.ceilings import case_ceilings
from charact.analysis.efficiency.roofline import work_reason
from charact.analysis.efficiency.time_bounds import limited_parts
from charact.analysis.profile.case_summary import iteration_times
from charact.analysis.profile.core_use import disturbance
from charact.analysis.profile.machine_speed import BOUND_FRAC
from charact.analysis.ranks.matching import rank_cases
from charact.analysis.ranks.stragglers import stragglers
from charact.analysis.ranks.waiting import late_s
from charact.core.units import quantity, share
from charact.record.reader import Run

MEMORY_FRAC = 0.9
"""Share of the memory from which a much larger batch does not fit."""

VERDICTS = {
    "data": "data-bound", "communication": "communication-bound", "host": "host-bound", "compute": "compute-bound",
    "bandwidth": "memory-bandwidth-bound",
}  # fmt: skip
"""Verdicts by the limit of most of the time; `memory-capacity-bound` and `straggler-bound` are the others."""
_CAPACITY = "memory-capacity-bound"
_STRAGGLER = "straggler-bound"
_LATE_FRAC = 0.5
"""Share of the communication from which waiting for another rank is the bottleneck, not the exchange itself."""
_WAITS = ("data", "communication", "host")
"""Limits in which the device computes nothing."""

_ON_HOST = (None, "data", "host")
"""Limits of a GPU's case that programs on the host's cores can change."""

_NUMBERS = ["share_frac", "threshold_frac", "prize_s", "prize_frac"]
_COLUMNS = ["case", "verdict", *_NUMBERS, "prize", "evidence", "limit_evidence", "advice", "reason"]


@memoize
def bottlenecks(run: Run) -> pd.DataFrame:
    """Return the bottleneck of each case, one row for each.

    The limit is the largest known part of the median iteration, if it has `BOUND_FRAC` or more, and, for compute and
    bandwidth, no less than the part with an unknown limit. Else there is none. The first rule that applies decides:

    1. The case ran out of memory: memory-capacity-bound.
    2. Its iterations were not timed: no verdict.
    3. Other programs took much of the cores (see `core_use`), and the case runs on the CPU, or its limit is data, host
       or none: no verdict, but advice.
    4. The limit is host or none, and the peak is `MEMORY_FRAC` of the memory or more: memory-capacity-bound, because a
       larger batch would help.
    5. The limit is communication, and at least half of it is waiting for a later rank: straggler-bound.
    6. There is a limit: bound by it; but not by the host, if a trace lacks the device's work.
    7. `BOUND_FRAC` or more of the time has an unknown limit: no verdict.
    8. Otherwise: no verdict, but advice.

    Columns:

    - case
    - verdict: 'data-bound', 'communication-bound', 'straggler-bound', 'host-bound', 'compute-bound',
      'memory-bandwidth-bound', 'memory-capacity-bound', or null.
    - share_frac: share of the limit in the median iteration (of all communication if straggler-bound).
    - threshold_frac: the threshold that it reached (`MEMORY_FRAC` for a full memory; null after running out of memory).
    - prize_s, prize_frac: the most that removing the bottleneck could save of an iteration, in s and as a share. Null
      for capacity, without a verdict, and if work is faster than its ceiling.
    - prize: a sentence with this saving; for data, it adds the saving of more loader processes.
    - evidence: shares of the limits, the threshold, and `limit_evidence`, which is about the limit alone: null without
      a verdict, and for capacity.
    - advice: one thing to try, and another one for each further wait of `BOUND_FRAC` or more.
    - reason: why there is no verdict.
    """
    parts = dict(iter(limited_parts(run).groupby("case", sort=False)))
    medians_s = iteration_times(run).groupby("case")["wall_s"].median()
    over = case_ceilings(run).set_index("case")
    rows = []
    for entry in run.entries:
        case = entry.case
        if entry.status == "oom":
            limit_bytes = entry.out_of_memory and entry.out_of_memory.limit_bytes
            limit = f" of {quantity(limit_bytes, 'B')}" if limit_bytes else ""
            row = {"verdict": _CAPACITY, "evidence": f"the case did not fit into the memory{limit}: {entry.reason}",
                   "advice": words.less_memory(entry)}
        elif case in parts:
            row = _judged(Situation(run, entry, parts[case], float(medians_s[case]), over.loc[case].to_dict()))
        elif entry.reason or "timing" in entry.passes:
            row = {"reason": entry.reason or pass_reason(run, case, "timing") or "no iteration was recorded"}
        else:
            row = {"reason": "its iterations were not timed by phase: run charact profile"}
        rows.append({"case": case} | row)
    return pd.DataFrame({
        name: pd.Series([row.get(name) for row in rows], dtype="float64" if name in _NUMBERS else "object")
        for name in _COLUMNS
    })


def _judged(case: Situation) -> dict[str, Any]:
    largest = max(VERDICTS, key=case.share)
    is_known = largest in _WAITS or case.share(largest) >= case.share("other")
    limit = largest if is_known and case.share(largest) >= BOUND_FRAC else None
    disturbed = disturbance(case.run, case.name)
    if disturbed and disturbed.is_unreliable and (case.on_cpu or limit in _ON_HOST):
        return {"reason": f"unreliable: {disturbed}", "advice": words.measure_again(case)}
    held, has = _memory(case)
    if limit in (None, "host") and held is not None and has is not None and held >= MEMORY_FRAC * has:
        evidence = (f"the peak of {quantity(held, 'B')} is {share(held / has)} of the memory’s {quantity(has, 'B')}; "
                    f"from {share(MEMORY_FRAC)} on, a larger batch, which would help, does not fit; "
                    f"{words.shares(case)}")
        return {"verdict": _CAPACITY, "threshold_frac": MEMORY_FRAC, "evidence": evidence,
                "advice": words.less_memory(case.entry)}
    if limit == "communication" and (waiting := _waiting(case)) is not None:
        return waiting
    if limit == "host" and _lacks_device(case):
        return {"reason": "the trace lacks the device’s work, so that what the host waits for is not known"}
    if limit is not None:
        return _bound_by(case, limit)
    if case.share("other") >= BOUND_FRAC:
        return {"reason": f"the limit of {share(case.share('other'))} of the iteration is unknown: {_why_other(case)}"}
    return {"reason": f"no limit takes {share(BOUND_FRAC)} {words.shares(case)}", "advice": words.largest(case)}


def _lacks_device(case: Situation) -> bool:
    """Return whether a case is of a trace without the device that ran the program."""
    of_case = case.run.iterations["case"] == case.name
    return (not case.on_cpu and case.entry.passes.timing.ended_by == "trace"
            and bool(case.run.iterations.loc[of_case, "device_s"].isna().all()))


def _bound_by(case: Situation, limit: str) -> dict[str, Any]:
    prize_s, more = case.spent_s(limit), words.saving_by_processes(case) if limit == "data" else ""
    if limit in ("compute", "bandwidth"):
        parts = case.of(limit)
        prize_s = float((parts["time_s"] - parts["bound_s"]).clip(lower=0.0).sum())
        if case.reached_frac(limit) > 1:  # the ceiling is no limit, so the distance to it is no saving
            prize_s = math.nan
    return _verdict(case, VERDICTS[limit], limit, prize_s, words.SAVINGS[limit],
                    words.EVIDENCE[limit](case), words.ADVICE[limit](case) + _for_waits(case, limit), more,
                    words.ceiling_origin(case, limit))


def _for_waits(case: Situation, limit: str) -> str:
    """Return what to try for waits of `BOUND_FRAC` or more, other than a limit, as the end of a sentence."""
    texts = []
    for wait in _WAITS:
        if wait == limit or case.share(wait) < BOUND_FRAC or (wait == "host" and _lacks_device(case)):
            continue
        late = _waiting(case) if wait == "communication" else None
        advice = late["advice"] if late else words.ADVICE[wait](case)
        texts += [f"; for {wait}: {advice}"] if isinstance(advice, str) else []  # ranks without a verdict have none
    return "".join(texts)


def _verdict(case: Situation, verdict: str, limit: str, prize_s: float, saving: str, evidence: str, advice: str,
             more: str = "", origin: str = "") -> dict[str, Any]:
    prize_frac = prize_s / case.median_s
    return {
        "verdict": verdict, "share_frac": case.share(limit), "threshold_frac": BOUND_FRAC,
        "prize_s": prize_s, "prize_frac": prize_frac,
        "prize": None if math.isnan(prize_s) else f"{saving} could save at most {share(prize_frac)} of the iteration, "
                                                  f"{quantity(prize_s, 's')}{more}",
        "evidence": f"{words.shares(case)}; {limit}, the largest known limit, counts as a bottleneck if it takes "
                    f"{share(BOUND_FRAC)} of the iteration or more; {evidence}{origin}",
        "limit_evidence": evidence,
        "advice": advice,
    }  # fmt: skip


def _waiting(case: Situation) -> dict[str, Any] | None:
    """Return the columns of a rank that mostly waits for another one; None if the exchange itself takes the time."""
    waited_s = late_s(case.run, case.name)
    if waited_s < _LATE_FRAC * case.spent_s("communication"):
        return None
    program: Any = rank_cases(case.run).set_index("case").loc[case.name, "program"]
    straggler = stragglers(case.run).set_index("program").loc[program]
    cause = straggler["evidence"] or straggler["reason"]
    evidence = f"{quantity(waited_s, 's')} of it is waiting for ranks that come later: {cause}"
    return _verdict(case, _STRAGGLER, "communication", waited_s, "ranks of equal speed", evidence,
                    straggler["advice"])


def _memory(case: Situation) -> tuple[float | None, float | None]:
    """Return the peak memory of the case and the memory of its device (bytes), each None if unknown."""
    measured, machine = case.entry.passes.memory, case.run.manifest.get("machine", {})
    if case.on_cpu:
        sizes = [machine.get("memory_bytes"), machine.get("memory_limit_bytes")]
    else:
        index = int(case.entry.device.partition(":")[2] or 0)
        sizes = [gpu.get("memory_bytes") for gpu in machine.get("gpus", []) if gpu.get("index") == index]
    held = measured.process_peak_bytes if case.on_cpu else measured.reserved_peak_bytes
    return held, min(filter(None, sizes), default=None)


def _why_other(case: Situation) -> str:
    run, name, parts = case.run, case.name, case.of("other")
    if 2 * parts.loc[parts["phase"] == "other", "time_s"].sum() >= case.spent_s("other"):
        return "most of it is in no phase" + (": charact run --sample shows where" if is_watched(run) else "")
    if parts["operator_type"].isna().all():
        remedy = "charact run --passes operators" if is_watched(run) else "charact profile"
        reason = pass_reason(run, name, "operators") or "none were recorded"
        has_remedy = is_imported(run) or remedy in reason
        return f"operators: {reason}" + ("" if has_remedy else f" ({remedy} measures them)")
    known = case.over["reason"] or "neither FLOP nor bytes of these operators are available"
    return work_reason(run, name) or str(known)
