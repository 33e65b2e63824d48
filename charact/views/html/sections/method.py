"""The last section: how numbers were taken, what ended each case, and what is not there and why."""

from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import pass_outcomes, pass_reason, passes_taken, stop_rules, was_asked_for
from charact.analysis.common.script_attribution import dropped, is_imported, is_watched
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.profile.breakdown import operator_coverage
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, Block, Body
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table

_TIMING_POINTS = [
    ("Iteration time, phases, samples/s", "timing pass: only phase marks, no profiler. The iteration time is the "
     "median, with its 95 % interval from order statistics; a phase's time is its share of all iterations' time, times "
     "that median. It takes iterations for independent: slow drift makes it too narrow."),
]  # fmt: skip
_OPERATOR_POINTS = [
    ("Operators, operator types, layers", "operator pass: PyTorch’s profiler over a few iterations of their own, of "
     "which the quicker half counts. It lengthens short operators; its overhead ratio stands below."),
]  # fmt: skip
_MEMORY_POINTS = [
    ("Memory", "memory pass: the allocator’s own statistics and events, in iterations of their own."),
]  # fmt: skip
_PREDICTION_POINTS = [
    ("Predicted memory", "one iteration on tensors without data: what it would allocate and give back is noted, and "
     "played back in that order into a model of the device’s allocator. No device is needed."),
    ("– tensors", "exact: their shapes are those of the iteration."),
    ("– workspaces", "what operators allocate for themselves and give back. Calibrated, from small real runs, or "
     "modelled; the table of predictions says which. They are what the stated uncertainty is of."),
    ("– rounding, reserved", "modelled by the rules of the device’s caching allocator; CUDA only."),
    ("– context", "what a CUDA process takes before its first tensor: an estimate, not measured here."),
    ("Needed", "what a device must have: on CUDA what is reserved, at the upper end of the uncertainty, and the "
     "context; on a CPU the upper end of the predicted peak."),
    ("Process memory", "resident set, as the kernel counts it: Python, its libraries, and what their allocators keep "
     "belong to it. Its largest value is that since the process began."),
    ("Growth", "a line of least squares through the peaks of one series against pixels or tokens. The 95 % intervals "
     "take the peaks to scatter about a line; where growth bends, they tell how much."),
]  # fmt: skip
_FLOP_POINTS = [
    ("FLOP and bytes moved", "counted from the operators’ shapes on tensors without data; nothing is run. Counted are "
     "convolutions, matrix products and attention, as in published counts. Bytes are modelled: caches and fused "
     "operators move fewer, bad locality moves more."),
    ("Rates", "counted FLOP over time of the timing pass: a lower bound, since pointwise work is not counted."),
]  # fmt: skip
_COUNTER_POINTS = [
    ("Counters", "counter pass: read before and after iterations of their own, and from a thread of its own in "
     "between. Sources that replay kernels or lock clocks have passes of their own, which nothing is timed in."),
]  # fmt: skip
_FRAME_POINTS = [
    ("What “other” was", "a sampler in a thread of the program’s own process, every 10 ms; a sample comes late where "
     "the main thread computes in Python, and where it was is known to the line, not to the call. It may lengthen an "
     "iteration of short operators by up to 2 %."),
]  # fmt: skip
_TRAINING_POINTS = [
    ("Total execution time", "what the epochs took on the host’s clock: training, validation and checkpointing, each "
     "until the device had ended. Reading the data set and making the model come before it and are told apart."),
    ("Phases of a stage", "marked as in a profile, with no profiler. Where a device has clocked them, its times share "
     "out the stage’s wall time."),
    ("Loss and metrics", "means over the samples of a stage. Those of training are taken while the weights change, so "
     "that they trail those of the validation that follows."),
    ("Time to target", "total execution time at the end of the validation that first reached the target; it knows no "
     "finer step than an epoch."),
]  # fmt: skip
_INFERENCE_POINTS = [
    ("Total inference time", "load + prediction. A load makes the model, reads the file, and puts the weights onto the "
     "device, first touch included."),
    ("Cold and warm load", "cold: after the file was dropped from the system’s memory; warm: again at once, the median "
     "of several. The parts of a warm load are shares of all of them."),
    ("Time of a batch", "from fetching a batch to the end of its prediction; percentiles are over the batches of the "
     "prediction, the first ones included."),
]  # fmt: skip
_OPERATION_POINTS = [
    ("Time of an operation", "one call, its result’s memory included. So many calls are timed together that the clock "
     "does not matter; on CUDA between two events. Inputs are rotated through more memory than the last cache holds, "
     "unless they were to stay there (hot). The interval is that of the median over the repetitions."),
    ("Total execution time", "of a suite: the sum of its problems’ times, each once and in every direction."),
    ("FLOP and bytes of an operation", "from its sizes: 1 multiply-add is 2 FLOP; inputs read and outputs written "
     "once. A suite’s own count stands beside it where it counts otherwise."),
    ("Error", "the largest difference from the same operation in float64, over that result’s largest magnitude; what "
     "the precision allows of it is the tolerance."),
]  # fmt: skip
_TRACE_POINTS = {
    "timing": [
        ("Iteration time, phases", "from the trace, so under the profiler that wrote it. The iteration time is the "
         "median, with its 95 % interval from order statistics; a phase’s time is its share of all iterations’ time, "
         "times that median."),
    ],
    "operators": [
        ("Operators, operator types, layers", "from the same iterations. On a device an operator’s time is that of the "
         "kernels it launched itself."),
    ],
    "memory": [
        ("Memory", "what PyTorch’s allocator had handed out during the last iteration. A trace does not tell what it "
         "was for: all of it is “unknown”."),
    ],
}  # fmt: skip
"""The same of the numbers of a trace that was imported."""
_POINTS = {
    "timing": _TIMING_POINTS, "frames": _FRAME_POINTS, "operators": _OPERATOR_POINTS, "memory": _MEMORY_POINTS,
    "prediction": _PREDICTION_POINTS,
    "flop": _FLOP_POINTS, "training": _TRAINING_POINTS, "inference": _INFERENCE_POINTS,
    "counters": _COUNTER_POINTS, "ops": _OPERATION_POINTS,
}  # fmt: skip
"""What is to be said of the numbers of each pass."""


def method(run: Run) -> Body:
    """Where each number comes from, what ended each case, what it missed, and what is not there."""
    kinds = set(case_summary(run)["kind"])
    told = _TRACE_POINTS if is_imported(run) else _POINTS
    points = [point for name, of_pass in told.items() if name in passes_taken(run) for point in of_pass]
    blocks = {"timing": _stops, "operators": _coverage, "flop": _uncounted}
    if is_imported(run):  # a trace says how many iterations it has where it says how phases were found
        del blocks["timing"]
    profiled = [block for name, block in blocks.items() if "profile" in kinds and was_asked_for(run, name)]
    blocks_of_all = [*_dropped(run), *([_missing(run)] if kinds else [])]
    return Body(points=points, blocks=[*(block(run) for block in profiled), *blocks_of_all])


def _stops(run: Run) -> Block:
    rules = stop_rules(run).dropna(subset=["num_iterations"])
    title = "What ended each case"
    if rules.empty:
        return Block(title=title, note=fmt.missing("no case was timed"))
    for column in ("warmup_ended_by", "ended_by"):
        rules[column] = rules[column].map(lambda value: fmt.ENDED_BY.get(value, value))

    def untimed(row: Any) -> str | None:
        few = "no precision was asked for" if pd.isna(row.precision_target_frac) else "fewer than 6 iterations"
        return pass_reason(run, row.case, "timing") or few

    def unprofiled(row: Any) -> str | None:
        return pass_reason(run, row.case, "operators")

    precision = [
        Column("interval_frac", "± interval", fmt.share, "half of the 95 % interval over the median", untimed),
        Column("precision_target_frac", "Target", fmt.share, "the half interval asked for", untimed),
    ]  # fmt: skip
    first = "how much longer the first iteration took than the median one"
    columns = [
        CASE,
        Column("num_warmup_iterations", "Warm-up", fmt.number, "iterations before timing, not recorded", untimed),
        Column("warmup_ended_by", "Warm-up ended", meaning="what ended the warm-up", reason=untimed),
        Column("num_iterations", "Iterations", fmt.number, "timed", untimed),
        Column("ended_by", "Ended by", meaning="'target met': the interval is narrow enough", reason=untimed),
        *(precision if rules["precision_target_frac"].notna().any() else []),
        Column("compile_s", "Compiling", fmt.seconds, "over the whole program" if is_watched(run) else first,
               lambda row: untimed(row) if pass_reason(run, row.case, "timing") else "not compiled"),
    ]  # fmt: skip
    if was_asked_for(run, "operators"):
        meaning = "iteration under the profiler / iteration without; below 1 the machine got faster between the passes"
        columns.append(Column("overhead_ratio", "Profiler overhead", fmt.ratio, meaning, unprofiled))
    return Block(title=title, table=table(rules, "Stop rule of each case", columns))


def _coverage(run: Run) -> Block:
    coverage = operator_coverage(run)
    title = "How much operator time has a known type"
    if coverage.empty:
        return Block(title=title, note=fmt.missing("no case has operators"))
    columns = [
        CASE, Column("time_s", "Operator time", fmt.seconds, "per iteration, under the profiler"),
        Column("other_s", "Of type ‘other’", fmt.seconds, "no rule knows these operators"),
        Column("coverage_frac", "Known", fmt.share, "share of the operator time"),
    ]  # fmt: skip
    return Block(title=title, table=table(coverage, "Coverage of operator types", columns))


def _uncounted(run: Run) -> Block:
    names = {
        name for entry in run.manifest["cases"] for name in entry.get("passes", {}).get("flop", {}).get("uncounted", [])
    }
    note = ", ".join(sorted(names)) or "None: each that was counted has a formula."
    return Block(title="Heavy operators whose FLOP have no formula", note=note)


def _dropped(run: Run) -> list[Block]:
    rows = dropped(run)
    columns = [
        CASE, Column("what", "Dropped"), Column("num_dropped", "Number", fmt.number), Column("reason", "Reason"),
    ]  # fmt: skip
    title = "What the trace holds and the record does not"
    return [Block(title=title, table=table(rows, "Dropped from the trace", columns))] if len(rows) else []


def _missing(run: Run) -> Block:
    outcomes = pass_outcomes(run).query("status != 'ok'")
    title = "What is not here, and why"
    if outcomes.empty:
        return Block(title=title, note="Every pass over every case ended well.")
    groups = outcomes.groupby(["case", "status", "reason"], sort=False, dropna=False, as_index=False)
    outcomes = groups.agg(passes=("pass", ", ".join))
    if is_memory_run(run):  # most sizes of a sweep are only predicted
        outcomes = _joined(outcomes)
    columns = [
        CASE, Column("passes", "Passes"), Column("status", "Status"),
        Column("reason", "Reason", reason=lambda row: "no reason recorded"),
    ]  # fmt: skip
    return Block(title=title, table=table(outcomes, "Passes that gave nothing", columns))


def _joined(outcomes: pd.DataFrame) -> pd.DataFrame:
    """One row for all cases that lack the same for the same reason, which names the first of them."""
    groups = outcomes.groupby(["passes", "status", "reason"], sort=False, dropna=False, as_index=False)
    joined = groups.agg(case=("case", "first"), others=("case", "size"))
    more = [f" and {others - 1} more" if others > 1 else "" for others in joined["others"]]
    return joined.assign(case=joined["case"] + pd.Series(more, dtype="str"))
