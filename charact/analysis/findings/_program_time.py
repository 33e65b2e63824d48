"""Time of a whole watched program by part."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.findings._watched_case import WatchedCase, watched_cases
from charact.record.reader import Run

_NAMES = {
    "compilation": "compilation", "garbage_collection": "garbage collection", "epoch_start": "first batches of epochs",
    "new_input_shapes": "new input shapes", "long_inputs": "long inputs", "periodic_work": "periodic work",
    "slow_iterations": "other slow iterations",
}  # fmt: skip


@memoize
def program_time(run: Run) -> pd.DataFrame:
    """Return the time of a watched program by part; the parts sum to its wall time.

    Columns: part; time_s; share_frac. Parts are 'start' (before the first iteration); 'training' and 'evaluation'
    (iterations without the extra time of slow ones; 'inference' in a program that does not train); the extra time of
    slow iterations: 'warm-up', 'periodic work' and others by reason; 'between iterations'; 'end' (after the last
    iteration); 'charact' (its passes and its start). A program that was not recorded to its end has no rows.

    *Error*: an iteration of a pass counts as long as a typical one; the rest of its time counts as charact's.
    """
    cases = watched_cases(run)
    program = cases[0].program if cases else {}
    if not program.get("duration_s"):
        return pd.DataFrame({"part": [], "time_s": [], "share_frac": []})
    parts = {"start": program["before_s"]}
    for case in cases:
        for name, time_s in _iterations(case).items():
            parts[name] = parts.get(name, 0.0) + time_s
    parts |= {"between iterations": program["between_s"], "end": program["after_s"]}
    inside_s = program["duration_s"] - program["before_s"] - program["between_s"] - program["after_s"]
    named_s = sum(time_s for name, time_s in parts.items() if name not in ("start", "between iterations", "end"))
    if not any(case.trains for case in cases):
        parts["inference"] = parts.pop("evaluation")
    main = "training" if "training" in parts else "inference"
    parts[main] += inside_s - named_s
    parts["charact"] = sum((program.get("own_s") or {}).values())
    rows = pd.DataFrame({"part": list(parts), "time_s": list(parts.values())})
    rows = rows[rows["time_s"] > 0].reset_index(drop=True)
    return rows.assign(share_frac=rows["time_s"] / rows["time_s"].sum())


def _iterations(case: WatchedCase) -> dict[str, float]:
    """Return the time (s) of a case's iterations by part: the extra time of slow ones is in parts of its own."""
    extra = {_NAMES[reason]: group.extra_s for reason, group in case.slow_groups.items()}
    claimed = {index for group in case.slow_groups.values() for index in group.indices}
    warmup = case.iterations[case.iterations["kind"] == "warm-up"]
    unclaimed = warmup[~warmup.index.isin(claimed)]
    extra["warm-up"] = float((unclaimed["wall_s"] - case.typical_s).clip(lower=0.0).sum())
    whole_s = float(case.iterations["wall_s"].sum())
    whole_s += (case.num_iterations - len(case.iterations)) * case.typical_s
    return {"training" if case.trains else "evaluation": whole_s - sum(extra.values()), **extra}
